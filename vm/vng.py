"""virtme-ng's jobs: an interactive shell in a step's kernel, and the suite on the host's root as a cross-check."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from vm.cases import Case
from vm.errors import Infra
from vm.paths import REPO
from vm.qemu import MEMORY_MIB, Machine, Port, QemuGone, starved
from vm.wire import BOOT_CPU, Event, events


def program() -> str:
    """The vng of this very environment, else the one on PATH; Infra where there is none."""
    beside = Path(sys.executable).parent / "vng"
    found = str(beside) if beside.is_file() else shutil.which("vng")
    if not found:
        raise Infra("vng: not installed: run 'make setup' (python package virtme-ng)")
    return found


def environment() -> dict[str, str]:
    """Our environment with vng's own directory first on PATH: vng calls its helpers (virtme-run) by name."""
    return os.environ | {"PATH": f"{Path(program()).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def command(kernel: Path, kvm: bool, *more: str, cpus: int = 1, memory: int = MEMORY_MIB) -> list[str]:
    """vng's line for a kernel. 9p, since virtiofsd is not packaged everywhere and the guest's config has both."""
    line = [program(), "--run", str(kernel), "--force-9p", "--cpus", str(cpus), "--memory", f"{memory}M"]
    return [*line, *([] if kvm else ["--disable-kvm"]), *more]


def shell(kernel: Path, kvm: bool) -> int:
    """An interactive shell in the guest on a copy-on-write view of the host's root; vng's exit status."""
    return subprocess.run(command(kernel, kvm), env=environment(), check=False).returncode


class Vng:
    """A guest under virtme-ng on the host's root: the same interface as guest.Warm, booted anew for every group."""

    def __init__(
        self, machine: Machine, kernel: Path, logs: Path, stopping: threading.Event, slower: float = 1.0
    ) -> None:
        self.machine, self.kernel, self.slower = machine, kernel, slower
        self.logs, self.stopping = logs, stopping
        self._runs = 0

    def ensure(self) -> float:
        """Nothing to keep between guests: 0 seconds."""
        return 0.0

    def run(self, cases: list[Case], tar: str) -> Iterator[Event]:
        """Boot a guest and run cases in it; see wire.events()."""
        self._runs += 1
        log = self.logs / f"vng-{self.machine.name}-{self._runs}.console"
        log.parent.mkdir(parents=True, exist_ok=True)
        with _Guest(self, log) as guest:
            try:
                guest.accept(self.stopping)
                order = {"tar": tar, "nodeids": [c.nodeid for c in cases]}
                yield from events(guest, cases, log, self.stopping, BOOT_CPU * self.slower, order)
            except OSError as e:
                yield Event("infra", {"why": f"vng did not start a guest that listens: {e}: {guest.ended()}"})


class _Guest:
    """One running vng; QEMU connects to a socket of ours, since vng passes no file descriptors on."""

    port: Port

    def __init__(self, vng: Vng, log: Path) -> None:
        self.log = log
        self.scratch = tempfile.TemporaryDirectory(prefix="perpatch-")
        path = Path(self.scratch.name) / "port"
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen(1)
        options = f"-chardev socket,id=perpatch,path={path} -device virtio-serial-pci"
        options += " -device virtserialport,chardev=perpatch,name=perpatch.0"
        machine = vng.machine
        if machine.accel == "icount":
            options += f" -icount shift={machine.arch.icount_shift},sleep=off"
        inside = f"cd / && PYTHONPATH={shlex.quote(str(REPO))} PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 "
        inside += f"{shlex.quote(sys.executable)} -m vm.inside.agent"
        # The agent warms up there as well: measured cases must find everything imported and read.
        words = [f"--qemu-opts={options}", f"--append={machine.arch.append} {machine.append}".rstrip()]
        kvm = machine.accel == "kvm"
        line = command(vng.kernel, kvm, *words, cpus=machine.cpus, memory=machine.memory)
        # script(1): vng wants a terminal where udev is absent, and its console ends up in a file this way.
        self.process = subprocess.Popen(
            ["script", "-qfec", shlex.join([*line, "--exec", inside]), str(log)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> _Guest:
        return self

    def __exit__(self, *_: object) -> None:
        import psutil

        try:
            tree = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            tree = []
        self.process.kill()
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()
        psutil.wait_procs(tree, timeout=5)
        self.server.close()
        if hasattr(self, "port"):
            self.port.socket.close()
        self.scratch.cleanup()

    def accept(self, stopping: threading.Event) -> None:
        """Wait for QEMU to connect; OSError where vng ends before, or the run does."""
        self.server.settimeout(0.5)
        while True:
            try:
                line, _ = self.server.accept()
            except TimeoutError:
                if self.process.poll() is not None or stopping.is_set():
                    raise OSError("vng ended") from None
                continue
            self.port = Port(line)
            return

    def cpu_seconds(self) -> float:
        """CPU seconds of everything below vng."""
        import psutil

        total = 0.0
        try:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            pass
        return total

    def starved_seconds(self) -> float:
        """Seconds that what is below vng has waited for a CPU."""
        import psutil

        try:
            return sum(starved(p.pid) for p in psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return 0.0

    def nmi(self) -> None:
        """QEMU's monitor is vng's own here."""
        raise QemuGone("vng keeps QEMU's monitor to itself")

    def dump(self, file: Path) -> None:
        """As nmi()."""
        raise QemuGone("vng keeps QEMU's monitor to itself")

    def ended(self) -> str:
        """vng's exit status proves nothing (it is 255 for a panic and for more): only a signal counts as trouble."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it still runs"
        return "" if status in (0, 255) else f"status {status}: see {self.log}"
