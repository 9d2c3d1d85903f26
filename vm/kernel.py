"""One kernel as a whole, image, root, hardware and what it is judged as, and the guests that run cases on it here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vm import accel, arch, root
from vm.accel import Accel
from vm.arch import Arch
from vm.cases import Case
from vm.flavour import PLAIN, Flavour
from vm.guest import Guest, guest_for, machine_for
from vm.image import Image
from vm.qemu import Machine
from vm.reports import Cell, run_group
from vm.subject import Subject


@dataclass(frozen=True)
class Kernel:
    """All that a guest is made of; it can be pickled.

    root: the squashfs of warm guests. guest: warm or vng. keep: see guest.Warm.
    """

    arch: Arch
    image: Image
    root: Path
    subject: Subject
    accel: Accel
    flavour: Flavour = PLAIN
    guest: str = "warm"
    keep: bool = False

    def machine(self, case: Case) -> Machine:
        """The hardware that a case asks for."""
        return machine_for(case, self.arch, self.accel.name, self.flavour)


def assemble(
    image: Image,
    subject: Subject,
    accelerator: str = "auto",
    flavour: Flavour = PLAIN,
    guest: str = "warm",
    keep: bool = False,
) -> Kernel:
    """An image with this machine's root; accelerator: auto, kvm or tcg, see accel.choose()."""
    data, root_image = arch.load(), root.image()
    chosen = accel.choose(accelerator, data, image, root_image)
    return Kernel(data, image, root_image, subject, chosen, flavour, guest, keep)


class Runs(Protocol):
    """What runs groups of cases on a kernel: Guests, spread.Remote."""

    def boot(self, group: list[Case]) -> float:
        """Have the state that the group's guests resume; wall seconds that took. StepFailed (NO_BOOT) says why."""

    def run(self, group: list[Case], tar: str) -> Generator[Cell, None, None]:
        """Run a group in a guest of its own; cells as they come. Whoever stops reading ends the guest."""


# A kernel, a directory for its guests' consoles, and what ends them all: Guests, or those of a spread.Cluster.
MakeRuns = Callable[[Kernel, Path, threading.Event], Runs]


class Guests:
    """The guests of a kernel on this machine, as many at a time as there are threads that ask."""

    def __init__(self, kernel: Kernel, logs: Path, stopping: threading.Event) -> None:
        self.kernel, self.logs, self.stopping = kernel, logs, stopping
        self._made: dict[Machine, Guest] = {}
        self._lock = threading.Lock()

    def boot(self, group: list[Case]) -> float:
        """See Runs."""
        return self._guest(group).ensure()

    def run(self, group: list[Case], tar: str) -> Generator[Cell, None, None]:
        """See Runs."""
        yield from run_group(self._guest(group), group, tar, self.kernel.subject)

    def _guest(self, group: list[Case]) -> Guest:
        k, machine = self.kernel, self.kernel.machine(group[0])
        with self._lock:
            if machine not in self._made:
                made = guest_for(k.guest, machine, k.image, k.root, self.logs, self.stopping, k.flavour, k.keep)
                self._made[machine] = made
            return self._made[machine]


@contextmanager
def place(scheduler: str | None, jobs: int) -> Iterator[tuple[MakeRuns, int]]:
    """Where guests run, here or on a scheduler's workers, and how many of them are wanted at a time."""
    if scheduler is None:
        yield Guests, jobs
        return
    from vm.spread import Cluster  # late: it takes a second to import

    with Cluster(scheduler) as cluster:
        yield cluster.guests, 2 * cluster.threads  # so that no worker waits for us
