"""One QEMU process: its command line, QMP, our port, its console file, and the certainty that it ends.

Port and QMP are socket pairs that QEMU inherits: no socket files, and a dead QEMU reads as end of file at once.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vm.arch import Arch
from vm.errors import Infra
from vm.image import Image

MEMORY_MIB = 1024
LONGEST_LINE = 64 << 20  # bytes; a report holds what a case printed, which may be much


class QemuGone(Exception):
    """QEMU exited, or closed the line, while something was asked of it."""


@dataclass(frozen=True)
class Machine:
    """A guest's hardware: accelerator ("tcg", "icount" for virtual time, "kvm"), CPUs, memory in MiB.

    append: kernel arguments beside the architecture's own.
    """

    arch: Arch
    accel: str
    cpus: int = 1
    memory: int = MEMORY_MIB
    append: str = ""

    @property
    def name(self) -> str:
        """How its log files are called: icount, tcg-2-cpus, icount-3072-MiB."""
        words = [self.accel, *([f"{self.cpus}-cpus"] if self.cpus > 1 else [])]
        words += [*([f"{self.memory}-MiB"] if self.memory != MEMORY_MIB else []), *self.append.split()]
        return re.sub(r"[^\w.=-]", "_", "-".join(words))[:80]

    def line(self, image: Image, root: Path) -> list[str]:
        """The whole QEMU line but for what differs from run to run (console file, sockets, incoming state)."""
        a = self.arch
        cpu = a.cpu_kvm if self.accel == "kvm" else a.cpu_tcg
        line = [a.qemu, *a.machine, "-accel", "kvm" if self.accel == "kvm" else "tcg", "-cpu", cpu]
        if self.accel == "icount":
            # align off: a slow host must not make the guest wait; sleep=off: idle time is skipped.
            line += ["-icount", f"shift={a.icount_shift},sleep=off"]
        line += ["-smp", str(self.cpus), "-m", str(self.memory), "-kernel", str(image.kernel)]
        words = f"console={a.console} root=/dev/vda rootfstype=squashfs ro init=/init {a.append} {self.append}"
        line += ["-append", words.strip(), "-drive", f"file={root},if=virtio,format=raw,readonly=on"]
        if image.initramfs:
            line += ["-initrd", str(image.initramfs)]
            line += ["-drive", f"file={image.modules},if=virtio,format=raw,readonly=on"]
        # Saved while stopped, resumed running: without the run state in the saved one, the default holds.
        line += ["-global", "migration.store-global-state=off"]
        # A fixed seed and date: both are part of a saved state anyway, and a figure should not depend on them.
        return [*line, "-rtc", "base=2021-09-28T00:00:00,clock=vm", "-seed", "1"]


@functools.cache
def version(qemu: str) -> str:
    """First line of qemu --version; Infra where QEMU is missing."""
    try:
        said = subprocess.run([qemu, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except FileNotFoundError:
        raise Infra(f"{qemu}: not installed: 'perpatch doctor' says which package has it") from None
    return said.splitlines()[0]


def starved(pid: int) -> float:
    """Seconds that a process's threads have waited for a CPU (second field of schedstat, ns)."""
    waited = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited += int(file.read_text().split()[1])
        except (OSError, IndexError):  # a thread that has just ended
            continue
    return waited / 1e9


class Port:
    """The host's end of the virtio-serial port: JSON lines out, raw lines in."""

    def __init__(self, line: socket.socket) -> None:
        self.socket = line

    def send(self, message: dict[str, Any]) -> None:
        """One line to the guest."""
        self.socket.settimeout(60)
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, word: str) -> None:
        """One word to the guest's pulse (see vm/inside/agent.py), which answers on the console."""
        self.socket.settimeout(5)
        self.socket.sendall(word.encode() + b"\n")

    def lines(self, tick: float = 0.25) -> Iterator[bytes | None]:
        """Lines from the guest as they come; None whenever `tick` seconds passed without one; ends with QEMU."""
        self.socket.settimeout(tick)
        buffer, asked = bytearray(), time.monotonic()
        while True:
            try:
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                part = None
            except OSError:
                return
            if part == b"":
                return
            # A guest that sends without end and without a newline must not keep us from looking at the clock.
            if part is None or time.monotonic() - asked > tick:
                asked = time.monotonic()
                yield None
            if not part:
                continue
            searched = len(buffer)
            buffer += part
            while (cut := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:cut])
                del buffer[: cut + 1]
                searched = 0
                yield line
            if len(buffer) > LONGEST_LINE:
                yield bytes(buffer[:80])
                return


class Qemu:
    """A running QEMU; a context manager that kills it at the end, whatever happened."""

    def __init__(self, line: list[str], console: Path, incoming: Path | None = None) -> None:
        console.parent.mkdir(parents=True, exist_ok=True)
        self.console = console
        ours, theirs = socket.socketpair()
        self.port = Port(ours)
        self.monitor, monitor = socket.socketpair()
        own = [
            *("-serial", f"file:{console}"),
            *("-chardev", f"socket,id=port,fd={theirs.fileno()}", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=port,name=perpatch.0"),
            *("-chardev", f"socket,id=qmp,fd={monitor.fileno()}", "-mon", "chardev=qmp,mode=control"),
        ]
        if incoming:
            own += ["-incoming", f"exec:cat {shlex.quote(str(incoming))}"]
        # pdeathsig: should we be killed outright, QEMU goes with us.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *line, *own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(), monitor.fileno()),
            start_new_session=True,  # Ctrl-C reaches us alone; we decide what happens to the guest
        )
        theirs.close()
        monitor.close()
        self._replies = self.monitor.makefile("rb")

    def __enter__(self) -> Qemu:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thing in (self._replies, self.monitor, self.port.socket, self.process.stderr):
            if thing is not None:
                thing.close()

    def said(self) -> str:
        """What a QEMU that has ended wrote to its standard error."""
        self.process.wait()
        assert self.process.stderr is not None
        return self.process.stderr.read().decode(errors="replace").strip()

    def connect(self, timeout: float = 30) -> None:
        """Take QMP's greeting; QemuGone with QEMU's own words where it never came up."""
        self.monitor.settimeout(timeout)
        try:
            if not self._replies.readline():
                raise QemuGone(self.said() or "qemu ended at once")
        except TimeoutError:
            raise QemuGone(f"qemu answered nothing for {timeout:.0f} s") from None
        self.qmp("qmp_capabilities")

    def qmp(self, command: str, **arguments: Any) -> Any:
        """One QMP command's return value; QemuGone where it is refused or nobody answers."""
        try:
            self.monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            while True:
                line = self._replies.readline()
                if not line:
                    raise QemuGone(self.said() or f"qemu ended during {command}")
                reply = json.loads(line)
                if "return" in reply:
                    return reply["return"]
                if "error" in reply:
                    raise QemuGone(f"{command}: {reply['error']['desc']}")
        except (OSError, ValueError) as e:
            raise QemuGone(f"{command}: {e}") from None

    def save(self, file: Path) -> None:
        """Write the guest's state into a file; the guest is stopped for it, and runs on where the file is resumed."""
        # QEMU 7.2 loses writes of an emulated CPU that runs on meanwhile: seen as bad page states after the resume.
        self.qmp("stop")
        self.qmp("migrate", uri=f"exec:cat > {shlex.quote(str(file))}")
        while True:
            status = self.qmp("query-migrate").get("status")
            if status == "completed":
                return
            if status in ("failed", "cancelled"):
                raise QemuGone(f"saving the state {status}")
            time.sleep(0.02)

    def nmi(self) -> None:
        """Show where a stuck kernel is: an NMI, which panics (unknown_nmi_panic) and prints the stack."""
        self.qmp("inject-nmi")
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            raise QemuGone("the kernel did not take the NMI") from None

    def dump(self, file: Path) -> None:
        """The guest's memory for crash(8) or gdb, compressed; QemuGone where QEMU cannot."""
        self.qmp("dump-guest-memory", paging=False, protocol=f"file:{file}", format="kdump-zlib")

    def listen(self, path: Path) -> None:
        """Let gdb attach: `target remote PATH`."""
        self.qmp("human-monitor-command", **{"command-line": f"gdbserver unix:{path},server=on,wait=off"})

    def ended(self) -> str:
        """Wait for the end; "" where QEMU left with status 0, else the status and its last words."""
        status = self.process.wait()
        return f"status {status}: {self.said() or 'killed from outside?'}" if status else ""

    def starved_seconds(self) -> float:
        """Seconds that its threads were ready to run and had no CPU of the host (0 where the host does not count)."""
        return starved(self.process.pid)

    def cpu_seconds(self) -> float:
        """CPU time that QEMU has used so far (user and system), in seconds."""
        import psutil

        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)
