"""git as the project calls it: no user configuration, no hooks, no signing, fixed name and dates."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Failed(Exception):
    """git exited with a status other than 0; the text is what it printed."""


_OFF = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "gc.auto=0", "-c", "core.autocrlf=false")


def _environment() -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return keep | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "perpatch",
        "GIT_AUTHOR_EMAIL": "perpatch@localhost",
        "GIT_COMMITTER_NAME": "perpatch",
        "GIT_COMMITTER_EMAIL": "perpatch@localhost",
        "GIT_AUTHOR_DATE": "@0 +0000",
        "GIT_COMMITTER_DATE": "@0 +0000",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def run(where: Path, *args: str, data: bytes | None = None) -> str:
    """Run git in `where`; its output as text. Failed carries both streams."""
    # safe.directory: a tree that belongs to somebody else is only read, and its hooks and configuration are off.
    done = subprocess.run(
        ["git", *_OFF, "-c", "safe.directory=*", *args],
        cwd=where,
        env=_environment(),
        input=data if data is not None else b"",
        capture_output=True,
    )
    out = done.stdout.decode(errors="replace")
    if done.returncode:
        raise Failed((out + done.stderr.decode(errors="replace")).strip())
    return out


def read(where: Path, *args: str) -> str:
    """One value that git prints, stripped."""
    return run(where, *args).strip()
