"""Packages of other Debian suites through a private apt state; nothing under /etc or /var is changed.

The mirror is the one that this machine's apt already uses; the archive's signature is checked with Debian's keyring.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Which suites have which kernel, as (package pattern, suites in which to look); *-security is on a mirror of its own.
SUITES = [
    (r"linux-source-5\.10$", ["bullseye-security"]),
    (r"linux-source-6\.1$", ["bookworm"]),
    (r"linux-source-6\.12$", ["trixie"]),
    (r"linux-image-5\.10\b", ["bullseye-security"]),
    (r"linux-image-6\.1\b", ["bookworm-security", "bookworm"]),
    (r"linux-image-6\.12\b", ["trixie-security", "trixie"]),
    (r"linux-image-", ["trixie-backports", "sid", "experimental"]),
]


class Unavailable(Exception):
    """The package cannot be had this way; the text says why."""


def suites_of(package: str) -> list[str]:
    """The suites that may have a package, best first; Unavailable where none is known."""
    for pattern, suites in SUITES:
        if re.match(pattern, package):
            return suites
    raise Unavailable(f"no suite is known to have {package}")


def mirror(security: bool) -> str:
    """The mirror that this machine's apt uses, as apt itself tells it."""
    if not shutil.which("apt-get"):
        raise Unavailable("this machine has no apt-get")
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)|$(ORIGIN)|$(CODENAME)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    rows = {tuple(line.split("|")) for line in asked.stdout.splitlines() if line.count("|") == 2}
    debian = sorted((name, site) for site, origin, name in rows if origin == "Debian")
    if not debian:
        raise Unavailable("its apt has no Debian mirror, or 'apt-get update' has never run")
    wanted = [site for name, site in debian if ("security" in name or "security" in site) == security]
    return wanted[0] if wanted else debian[0][1]


class Archive:
    """One suite of the distribution's archive behind a private apt state; use it as a context."""

    def __init__(self, suite: str, near: Path, say: Callable[[str], None]) -> None:
        """near: the directory beneath which the state lives for a while. Unavailable says why there is none."""
        site = mirror("security" in suite)
        if not KEYRING.is_file():
            raise Unavailable(f"no {KEYRING} to check the archive's signature with: install debian-archive-keyring")
        near.mkdir(parents=True, exist_ok=True)
        self.suite = suite
        self._state = tempfile.TemporaryDirectory(dir=near)
        self._options = _private(Path(self._state.name), f"deb [signed-by={KEYRING}] {site} {suite} main\n")
        say(f"apt index of {suite}")
        try:
            _run(["apt-get", "-q", *self._options, "update"], near)
        except Unavailable:
            self._state.cleanup()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._state.cleanup()

    def names(self, pattern: str) -> list[str]:
        """Names of packages that match a regular expression, oldest version first."""
        said = _run(["apt-cache", *self._options, "search", "--names-only", pattern], Path(self._state.name))
        return sorted((line.split()[0] for line in said.splitlines()), key=version_key)

    def download(self, package: str, into: Path) -> Path:
        """Download one package's .deb into a directory; Unavailable says why not."""
        _run(["apt-get", "-q", *self._options, "download", package], into)
        found = sorted(into.glob(f"{package}_*.deb"))
        if not found:
            raise Unavailable(f"{self.suite} has no {package}")
        return found[-1]


def version_key(name: str) -> list[int]:
    """Numbers in a name, so that 6.1.0-57 sorts after 6.1.0-9."""
    return [int(n) for n in re.findall(r"\d+", name)]


def fetch(package: str, into: Path, say: Callable[[str], None]) -> Path:
    """Download one package's .deb into a directory; Unavailable says why not."""
    with Archive(suites_of(package)[0], into, say) as archive:
        say(f"downloading {package}")
        return archive.download(package, into)


def _private(state: Path, sources: str) -> list[str]:
    for sub in ("lists/partial", "cache/archives/partial"):
        (state / sub).mkdir(parents=True)
    (state / "sources.list").write_text(sources)
    settings = {
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        # Without this a root user's download drops to _apt, who cannot write into the user's cache.
        "APT::Sandbox::User": "root",
        "Acquire::Retries": 3,
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _run(command: list[str], where: Path) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    # update returns 0 with only warnings when an index could not be had.
    bad = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W: Failed", "W: GPG"))]
    if done.returncode or bad:
        raise Unavailable(bad[0] if bad else f"{command[0]} exited {done.returncode}")
    return done.stdout
