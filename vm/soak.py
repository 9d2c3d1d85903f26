"""`make soak`: hundreds of boots and thousands of resumed cases in a row; nothing may be lost, nothing left running."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.progress import track

from vm import arch, root, series, source
from vm.errors import StepFailed
from vm.guest import Warm, selftests_tar
from vm.image import Builder
from vm.plugin import DEFAULT_SERIES, collect
from vm.qemu import Machine
from vm.reports import run_group
from vm.subject import step_subject

CASE = "selftests/so_reserve_mem/test_value.py::test_ipv6"


def soak(
    boots: Annotated[int, typer.Option(help="guests that are booted from nothing")] = 200,
    resumes: Annotated[int, typer.Option(help="guests that are resumed for one case")] = 2000,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="guests at a time")] = 2,
) -> None:
    """Boot and resume the last step of the default series over and over; exit status 1 if anything was lost."""
    under_test, data = series.load(DEFAULT_SERIES), arch.load()
    last, cases = len(under_test.patches), collect(DEFAULT_SERIES, [CASE])
    with tempfile.TemporaryDirectory(prefix="perpatch-") as scratch:
        logs = Path(scratch)
        found = source.find(under_test.base, None, None, None, typer.echo)
        image = Builder(found, under_test, data, logs).image(last)
        tar, where = selftests_tar(), root.image()

        def warm(n: int) -> Warm:
            return Warm(Machine(data, "icount"), image, where, logs / str(n), threading.Event())

        def boot(n: int) -> str:
            guest = warm(n)
            guest.state = logs / f"{n}.state"  # one that no cache has
            try:
                guest.ensure()
            except StepFailed as e:
                return f"{e.verdict}: {e.reason}"
            finally:
                guest.state.unlink(missing_ok=True)
            return "booted"

        def resume(n: int) -> str:
            cells = list(run_group(warm(n), cases, tar, step_subject(under_test, last)))
            return ", ".join(f"{cell.verdict} {cell.reason}".strip() for cell in cells) or "nothing arrived"

        warm(0).ensure()
        ended = _spread(boot, boots, jobs, "boots") + _spread(resume, resumes, jobs, "resumed cases")
    for what, count in ended.most_common():
        typer.echo(f"{count:6} {what}")
    left = [p for p in psutil.Process().children(recursive=True) if "qemu" in p.name()]
    typer.echo(f"{len(left):6} processes left")
    raise typer.Exit(0 if ended == Counter({"booted": boots, "PASS": resumes}) and not left else 1)


def _spread(work: Callable[[int], str], times: int, jobs: int, what: str) -> Counter[str]:
    with ThreadPoolExecutor(jobs) as pool:
        ended: Iterable[str] = pool.map(work, range(times))
        return Counter(track(ended, description=what, total=times))


if __name__ == "__main__":
    typer.run(soak)
