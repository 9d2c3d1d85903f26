"""The command as a user starts it, and what it must not leave behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from vm.paths import REPO, cache

# A background job of a shell that is not interactive has SIGINT ignored, and so would what it starts.
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PERPATCH = [sys.executable, "-c", f"{HEARS}; from vm.cli import main; main()"]
SHARED = ("images", "sources", "roots", "kernels", "build", "accel")
FILE = "selftests/so_reserve_mem/test_value.py"
RUN = ["run", "--accel", "tcg", "--step", "3", FILE]


def own_cache(where: Path, *but: str) -> dict[str, str]:
    """An environment whose cache is this host's, but for the saved states and what is named."""
    where.mkdir()
    (where / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    for name in set(SHARED) - set(but):
        (where / name).symlink_to(cache() / name)
    return {"PERPATCH_CACHE": str(where)}


def path_without(tmp_path: Path, *gone: str) -> str:
    """A PATH on which these programs are not to be found."""
    here = tmp_path / "bin"
    here.mkdir()
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            if program.name not in gone:
                (here / program.name).unlink(missing_ok=True)
                (here / program.name).symlink_to(program)
    return str(here)


def mounted(where: Path, how: str) -> str:
    """What to begin a command line with, so that it alone sees a tmpfs there."""
    return f"exec unshare -m sh -c 'mkdir -p {where}; mount -t tmpfs -o {how} none {where}; exec \"$@\"' sh"


def start(words: list[str], env: dict[str, str] | None = None, before: str = "", **more: object) -> subprocess.Popen:
    """perpatch with these words; before: shell words that run it ("unshare -m ... exec")."""
    line = [*PERPATCH, *words]
    if before:
        line = ["sh", "-c", f'{before} "$@"', "sh", *line]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, cwd=REPO, text=True, env=os.environ | (env or {}), **(streams | more))  # type: ignore[call-overload]


def below(process: subprocess.Popen, name: str = "") -> list[psutil.Process]:
    """What it has started and still runs, of that name."""
    try:
        return [p for p in psutil.Process(process.pid).children(recursive=True) if name in p.name()]
    except psutil.NoSuchProcess:
        return []


def wait_for(what: Callable[[], object], seconds: float = 300) -> None:
    """Until it is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


def end(process: subprocess.Popen, how: signal.Signals) -> tuple[int, str, list[psutil.Process]]:
    """Send a signal: exit status, what it said, and which of its processes are left five seconds later."""
    mine = below(process)
    process.send_signal(how)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said, psutil.wait_procs(mine, timeout=5)[1]


def halves(env: dict[str, str]) -> list[str]:
    """What is half made in a cache of own_cache(); in what it shares with this host others may be at work."""
    own = [d for d in Path(env["PERPATCH_CACHE"]).iterdir() if d.is_dir() and not d.is_symlink()]
    return [p.name for directory in own for p in directory.iterdir() if p.name.startswith("tmp")]


def last_line(said: str) -> str:
    """The last line that is not where the results are."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("results:")]
    return lines[-1] if lines else ""
