"""One step for `pytest selftests`: the same stages as a whole run, in one thread, cells as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from vm import arch, flavour, released, source
from vm.cases import Case, groups
from vm.errors import Mistake
from vm.guest import selftests_tar
from vm.image import Builder, cached, compiler, key_of
from vm.kernel import Guests, assemble
from vm.paths import cache
from vm.reports import Cell
from vm.series import Series
from vm.subject import bring, step_subject


def cells_of_step(
    series: Series, step: int, cases: list[Case], option: Any, say: Callable[[str], None]
) -> Iterator[Cell]:
    """Run cases on one step, or on option.kernel; logs go under the cache (logs/SERIES/STEP).

    Raises StepFailed, Infra or Mistake.
    """
    machine_data, kind = arch.load(), flavour.load(option.flavour)
    series, cases = flavour.build_as(series, kind), flavour.patient(cases, kind)
    logs = cache() / "logs" / series.name / (f"step-{step}" if not option.kernel else released.slug(option.kernel))
    if option.kernel and (option.flavour or option.guest == "vng"):
        raise Mistake("--kernel: goes with neither --flavour nor --guest vng: leave one of them out")
    if option.kernel:
        image, subject = bring(option.kernel, series, machine_data, logs, say, option.tree, option.base)
        called = f"{image.release} ({image.version})" if image.release else option.kernel
    else:
        found = source.find(series.base, option.tree, option.base, option.tarball, say)
        called = f"{series.name} {series.step_name(step)} on {found.label}"
        cached_image = cached(key_of(found, series, step, machine_data, compiler(machine_data)))
        if cached_image is None:
            say(f"building {called}")
        image = cached_image or Builder(found, series, machine_data, logs).image(step, every_30_s(say))
        subject = step_subject(series, step)
    kernel = assemble(image, subject, option.accel, kind, option.guest)
    say(f"{called}; {kernel.accel.why}")
    guests, tar = Guests(kernel, logs, threading.Event()), selftests_tar()
    for group in groups(cases):
        yield from guests.run(group, tar)


def every_30_s(say: Callable[[str], None]) -> Callable[[int, str], None]:
    """A build's progress as a line every 30 s: a sign of life where there is no terminal to draw on."""
    told = [time.monotonic()]

    def progress(objects: int, what: str) -> None:
        if time.monotonic() - told[0] > 30:
            told[0] = time.monotonic()
            say(f"{objects} objects, {what}")

    return progress
