"""One step for `pytest selftests`: the same stages as a whole run, in one thread, cells as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from vm import accel, arch, root, source
from vm.cases import Case, groups
from vm.guest import Guest, guest_for, selftests_tar
from vm.image import Builder, cached, compiler, key_of
from vm.paths import cache
from vm.reports import Cell, run_group
from vm.series import Series


def cells_of_step(
    series: Series, step: int, cases: list[Case], option: Any, say: Callable[[str], None]
) -> Iterator[Cell]:
    """Run cases on one step. Raises StepFailed, Infra or Mistake; logs go under the cache (logs/SERIES/STEP)."""
    machine_data = arch.load()
    found = source.find(series.base, option.tree, option.base, option.tarball, say)
    logs = cache() / "logs" / series.name / f"step-{step}"
    image = cached(key_of(found, series, step, machine_data, compiler(machine_data)))
    if image is None:
        say(f"building {series.step_name(step)} of {series.name} on {found.label}")
        image = Builder(found, series, machine_data, logs).image(step, every_30_s(say))
    root_image = root.image()
    chosen = accel.choose(option.accel, machine_data, image.kernel, root_image)
    say(f"{series.name} {series.step_name(step)} on {found.label}; {chosen.why}")
    tar, warms = selftests_tar(), dict[str, Guest]()
    for group in groups(cases):
        kind = "icount" if group[0].virtual_time else chosen.name
        if kind not in warms:
            warms[kind] = guest_for(option.guest, machine_data, kind, image, root_image, logs, threading.Event())
        yield from run_group(warms[kind], group, tar, series, step)


def every_30_s(say: Callable[[str], None]) -> Callable[[int, str], None]:
    """A build's progress as a line every 30 s: a sign of life where there is no terminal to draw on."""
    told = [time.monotonic()]

    def progress(objects: int, what: str) -> None:
        if time.monotonic() - told[0] > 30:
            told[0] = time.monotonic()
            say(f"{objects} objects, {what}")

    return progress
