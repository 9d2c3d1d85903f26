"""Where things are: the project's own files, and the cache outside of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PATCHES = REPO / "patches"
SELFTESTS = REPO / "selftests"
VM = REPO / "vm"


def cache() -> Path:
    """The cache directory: PERPATCH_CACHE, else perpatch under the user's cache directory (XDG)."""
    named = os.environ.get("PERPATCH_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    from platformdirs import user_cache_path  # imported late: it is not needed where the variable is set

    return user_cache_path("perpatch")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on path (created if missing), so that two runs share one cache without harm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
