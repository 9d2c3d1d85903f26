"""`make bench`: how long the things take that people wait for, beside a plain `vng --exec true` in the same run.

Wall seconds, whole processes. Nothing is asserted: a wall time is a property of the machine. PERPATCH_BENCH_COLD=1
adds a cold run in an empty cache (that takes as long as the first `make vmtest`).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vm import arch, series, source, vng
from vm.image import Builder
from vm.paths import REPO, SELFTESTS, cache
from vm.plugin import DEFAULT_SERIES

BIN = Path(sys.executable).parent
RELEASED = "debian:6.1"
CASE = "selftests/so_reserve_mem/test_value.py"


def timed(command: list[str], environment: dict[str, str] | None = None, check: bool = True) -> float:
    """Wall seconds of a command; ends the bench where it fails, since a failed command's time means nothing."""
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=REPO,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    took = time.monotonic() - began
    if check and done.returncode:
        sys.exit(f"bench: {' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return took


def vng_exec_true(kernel: Path) -> float:
    """A plain boot of the same kernel: what virtme-ng alone costs."""
    line = subprocess.list2cmdline([*vng.command(kernel, kvm=False), "--exec", "true"])
    # Without udev vng cannot hand on a status and returns 255 for a boot that went well: it proves nothing.
    return timed(["script", "-qfec", line, "/dev/null"], vng.environment(), check=False)


def row(what: str, seconds: list[float], beside: float | None = None) -> None:
    """One line of the table: minimum, median, maximum, and the median's ratio to vng --exec true."""
    middle = statistics.median(seconds)
    ratio = f"  {middle / beside:.2f} x vng" if beside else ""
    print(f"{what:55} {min(seconds):7.2f} {middle:7.2f} {max(seconds):7.2f}{ratio}", flush=True)


def main() -> None:
    """Print the table: what, minimum, median, maximum in wall seconds."""
    under_test = series.load(DEFAULT_SERIES)
    found = source.find(under_test.base, None, None, None, print)
    image = Builder(found, under_test, arch.load(), cache() / "logs").image(len(under_test.patches))
    one = [str(BIN / "pytest"), "-q", CASE, "-k", "one_byte or rounds", "--accel", "tcg"]
    with tempfile.TemporaryDirectory() as scratch:
        whole = [str(BIN / "perpatch"), "run", "--results", f"{scratch}/r", "--accel", "tcg"]
        if os.environ.get("PERPATCH_BENCH_COLD"):
            row("cold matrix, empty cache", [timed(whole, {"PERPATCH_CACHE": f"{scratch}/cache"})])
        timed(one)  # whatever is not there yet is made now
        print(f"{'wall seconds':55} {'min':>7} {'median':>7} {'max':>7}")
        plain, warm, edited = [], [], []
        for _ in range(3):  # in turn, so that a machine that drifts drifts for all of them
            plain.append(vng_exec_true(image.kernel))
            warm.append(timed(one))
            (REPO / CASE).touch()  # a new time: compiled anew, delivered anew
            edited.append(timed(one))
        beside = statistics.median(plain)
        row("vng --exec true, same kernel", plain, beside)
        row("pytest selftests, one functional file, warm", warm, beside)
        row("the same after an edit", edited, beside)
        row(f"warm matrix, {len(under_test.patches) + 1} steps", [timed(whole) for _ in range(2)])
        released = [*whole, "--kernel", RELEASED]
        timed(released)
        row(f"one released kernel, {RELEASED}, warm", [timed(released) for _ in range(2)])
    print(f"cases: {sum(1 for _ in SELFTESTS.rglob('test_*.py'))} files, series {under_test.name} on {found.label}")


if __name__ == "__main__":
    main()
