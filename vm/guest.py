"""Stage 4: a warm guest: booted once a kernel, its state saved, resumed for every group of cases."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from vm import chosen, console
from vm.arch import Arch
from vm.cases import Case
from vm.errors import Infra, StepFailed
from vm.flavour import PLAIN, Flavour
from vm.image import Image
from vm.paths import REPO, SELFTESTS, cache, locked
from vm.qemu import Machine, Qemu, QemuGone, version
from vm.vng import Vng
from vm.wire import BOOT_CPU, FROM_GUEST, IDLE_SECONDS, RESUME_CPU, Deadline, Event, events

KEEP_DAYS = 14


def selftests_tar(mutant: str = "") -> str:
    """selftests/ as the guest gets it: a tar in base64, compiled cases and file times included, and what was chosen.

    mutant: see chosen.options().
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(SELFTESTS.rglob("*")):
            if path.is_file() and (path.suffix in (".py", ".pyc", ".json", ".toml") or path.parent.name == "data"):
                tar.add(path, arcname=str(path.relative_to(REPO)))
        options = chosen.options(mutant).encode()
        entry = tarfile.TarInfo(chosen.WHERE)
        entry.size = len(options)
        tar.addfile(entry, io.BytesIO(options))
    return base64.b64encode(data.getvalue()).decode()


def state_key(line: list[str], image_key: str, root_key: str, qemu: str) -> str:
    """The name of a saved state: image, root, QEMU's version, and the whole machine line."""
    return hashlib.sha256(json.dumps([line, image_key, root_key, qemu]).encode()).hexdigest()[:24]


class Warm:
    """A kernel that can be resumed: the machine line and its saved state (made on first use).

    slower: factor for the deadlines of boot and resume; a debug kernel boots as slowly as it runs. keep: a guest
    that hangs lives on for gdb until the run is stopped.
    """

    def __init__(
        self,
        machine: Machine,
        image: Image,
        root: Path,
        logs: Path,
        stopping: threading.Event,
        slower: float = 1.0,
        keep: bool = False,
    ) -> None:
        self.machine, self.logs, self.stopping, self.slower = machine, logs, stopping, slower
        self.vmlinux, self.keep = Path(image.dir) / "vmlinux", keep
        self.line = machine.line(image, root)
        key = state_key(self.line, image.key, root.stem, version(machine.arch.qemu))
        self.state = cache() / "states" / f"{key}.state"
        self._runs = itertools.count(1)  # next() is atomic: groups of a step share this object

    def ensure(self) -> float:
        """Boot and save the state where the cache lacks it; wall seconds that took. StepFailed (NO_BOOT) says why."""
        if self._usable():
            os.utime(self.state)
            return 0.0
        began = time.monotonic()
        with locked(self.state.with_suffix(".lock"), self.stopping.is_set):
            if not self._usable():
                try:
                    self._boot()
                except StepFailed:
                    # In virtual time a boot is the same each time. In real time a host that stood still meanwhile is
                    # seen as timers that fail, and the second boot says whether it was the kernel.
                    if self.machine.accel == "icount":
                        raise
                    self._boot()
        return time.monotonic() - began

    def _usable(self) -> bool:
        """Whether there is a state at all; one that a crash cut short does not resume, and is then removed."""
        return self.state.is_file() and self.state.stat().st_size > 1 << 20

    def _boot(self) -> None:
        log = self.logs / f"boot-{self.machine.name}.console"
        with (
            tempfile.TemporaryDirectory(dir=self.state.parent) as scratch,
            Qemu(self.line, log) as qemu,
        ):
            try:
                qemu.connect()
            except QemuGone as e:
                raise Infra(f"qemu: {e}") from None
            deadline = Deadline(qemu, BOOT_CPU * self.slower, IDLE_SECONDS)
            for line in qemu.port.lines():
                if self.stopping.is_set():
                    raise Infra("the boot was stopped")
                if line is None:
                    if late := deadline.over():
                        raise _no_boot(qemu, log, *late)
                elif b'"ready"' in line:
                    break
            else:
                bad = qemu.ended()
                if bad:
                    raise Infra(f"qemu ended during the boot with {bad}")
                text = console.read(log)
                raise StepFailed("NO_BOOT", console.death(text) or f"guest ended: {console.last(log)}", log)
            half = Path(scratch) / "state"
            try:
                qemu.save(half)
            except QemuGone as e:
                free = shutil.disk_usage(self.state.parent).free >> 20
                raise Infra(f"{self.state.parent}: {e}: {free} MiB free: 'perpatch clean' makes room") from None
            half.rename(self.state)
        _forget(self.state.parent)

    def _kept(self, qemu: Qemu, event: Event) -> Iterator[Event]:
        """The end of a guest that hangs, with the way to attach gdb; it then lives on until the run is stopped."""
        path = Path(tempfile.mkdtemp(prefix="perpatch-")) / "gdb"
        qemu.listen(path)
        how = f"gdb -ex 'target remote {path}' {self.vmlinux}"
        try:
            yield Event(event.kind, event.data | {"why": f"{event.data['why']}: kept until Ctrl-C: {how}"})
        finally:  # whoever reads the events stops here
            while not self.stopping.wait(0.5) and qemu.process.poll() is None:
                pass
            shutil.rmtree(path.parent, ignore_errors=True)

    def run(self, cases: list[Case], tar: str) -> Iterator[Event]:
        """Resume a guest and run cases in it; every event as it comes, the last is done, panic, hang, died or infra."""
        log = self.logs / f"{self.machine.name}-{next(self._runs)}.console"
        with Qemu(self.line, log, self.state) as qemu:
            resumed = False
            try:
                if not self._usable():
                    raise QemuGone("its state is gone")  # QEMU itself would wait for it for ever
                qemu.connect()
                qemu.port.send({"tar": tar, "nodeids": [c.nodeid for c in cases]})
                for event in events(qemu, cases, log, self.stopping, RESUME_CPU * self.slower, keep=self.keep):
                    resumed |= event.kind in FROM_GUEST
                    if event.kind == "hang" and self.keep:
                        yield from self._kept(qemu, event)
                    else:
                        yield event
            except (QemuGone, OSError) as e:
                yield Event("infra", {"why": f"the saved guest did not resume: {e}"})
            finally:  # whoever reads the events may stop at the one that ends the guest
                if not resumed and not self.stopping.is_set():
                    self.state.unlink(missing_ok=True)  # a state that does not resume must not be met again


def _no_boot(qemu: Qemu, log: Path, kind: str, why: str) -> StepFailed | Infra:
    """A boot that did not come to its end: where it stands, if an NMI can tell, and its last words."""
    if kind == "infra":
        return Infra(f"{why}: see {log}")
    words = console.last(log)
    try:
        qemu.nmi()
    except QemuGone:
        pass
    return StepFailed("NO_BOOT", f"{why}: last words: {words}", log)


def _forget(states: Path) -> None:
    """Remove states that nothing has resumed for long: 160 MB each, and a new library makes all of them stale."""
    for state in states.glob("*.state"):
        if time.time() - state.stat().st_mtime > KEEP_DAYS * 86400:
            state.unlink(missing_ok=True)


Guest = Warm | Vng


def machine_for(case: Case, arch: Arch, functional: str, flavour: Flavour) -> Machine:
    """The hardware that a case asks for; functional: the accelerator of cases that ask for nothing (icount or kvm).

    Races want real time: under TCG that is multi-threaded emulation without a virtual clock.
    """
    cpus = 1 if case.virtual_time else max(case.cpus, flavour.cpus)
    accel = "icount" if case.virtual_time else functional
    return Machine(
        arch,
        accel if cpus == 1 or functional == "kvm" else "tcg",
        cpus,
        max(flavour.memory, case.memory),
        f"{flavour.append} {case.boot}".strip(),
    )


def guest_for(
    how: str,
    machine: Machine,
    image: Image,
    root: Path,
    logs: Path,
    stopping: threading.Event,
    flavour: Flavour = PLAIN,
    keep: bool = False,
) -> Guest:
    """The guest that runs cases on a machine: how is warm (our own root) or vng (virtme-ng's); keep: see Warm."""
    if how == "vng":
        return Vng(machine, image.kernel, logs, stopping, flavour.slower)
    return Warm(machine, image, root, logs, stopping, flavour.slower, keep)
