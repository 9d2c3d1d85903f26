"""Where things are: the project's own files, and the cache outside of it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vm.errors import Infra, Mistake

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


def mark() -> None:
    """Mark the cache directory as one (CACHEDIR.TAG, https://bford.info/cachedir/): `clean` empties no other."""
    tag = cache() / "CACHEDIR.TAG"
    if not tag.is_file():
        tag.parent.mkdir(parents=True, exist_ok=True)
        tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n# The cache of perpatch.\n")


@contextmanager
def locked(path: Path, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold an exclusive lock on path (created if missing), so that two runs share one cache without harm.

    Infra when given_up() says so while another run holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mark()
    with path.open("w") as f:
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if given_up():
                    raise Infra(f"{path}: stopped while another run held it") from None
                time.sleep(0.2)
        yield


def writable(into: Path) -> None:
    """Make a results directory; Mistake where that, or writing into it, is not possible."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        probe = into / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise Mistake(f"--results {into}: cannot be written: {e.strerror}: give another directory") from None
