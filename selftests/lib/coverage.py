"""Which lines of the kernel ran during a case: the counters of a kernel that was built to count (perpatch cover)."""

import base64
import zlib
from functools import cache
from pathlib import Path

GCOV = Path("/sys/kernel/debug/gcov")  # Documentation/dev-tools/gcov.rst


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(GCOV.rglob("*.gcda")))


@cache
def _untouched() -> dict[Path, bytes]:
    """The counters as they are when nothing has run."""
    (GCOV / "reset").write_text("0")
    return {file: file.read_bytes() for file in _files()}


def begin() -> None:
    """Count from here on, where the kernel counts."""
    if _files():
        _untouched()
        (GCOV / "reset").write_text("0")


def ran() -> dict[str, str]:
    """The counters that moved, by path below GCOV: gcda as the kernel writes it, compressed, in base64."""
    now = {file: file.read_bytes() for file in _files()}
    moved = {file: data for file, data in now.items() if data != _untouched()[file]}
    return {str(file.relative_to(GCOV)): base64.b64encode(zlib.compress(data)).decode() for file, data in moved.items()}
