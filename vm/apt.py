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

# Which suite has which kernel, as (package pattern, suite, is it on the security mirror).
SUITES = [
    (r"linux-source-5\.10$", "bullseye-security", True),
    (r"linux-source-6\.1$", "bookworm", False),
    (r"linux-source-6\.12$", "trixie", False),
]


class Unavailable(Exception):
    """The package cannot be had this way; the text says why."""


def suite_of(package: str) -> tuple[str, bool]:
    """The suite that has a package, and whether it is a security suite; Unavailable where none is known."""
    for pattern, suite, security in SUITES:
        if re.match(pattern, package):
            return suite, security
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


def fetch(package: str, into: Path, say: Callable[[str], None]) -> Path:
    """Download one package's .deb into a directory; Unavailable says why not."""
    suite, security = suite_of(package)
    site = mirror(security)
    if not KEYRING.is_file():
        raise Unavailable(f"no {KEYRING} to check the archive's signature with: install debian-archive-keyring")
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as state:
        options = _private(Path(state), f"deb [signed-by={KEYRING}] {site} {suite} main\n")
        say(f"source: apt index of {suite}")
        _apt(options, "update", into)
        say(f"source: downloading {package}")
        _apt(options, "download", into, package)
    found = sorted(into.glob(f"{package}_*.deb"))
    if not found:
        raise Unavailable(f"{suite} has no {package}")
    return found[-1]


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


def _apt(options: list[str], verb: str, where: Path, *words: str) -> None:
    done = subprocess.run(
        ["apt-get", "-q", *options, verb, *words], cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    # update returns 0 with only warnings when an index could not be had.
    bad = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W: Failed", "W: GPG"))]
    if done.returncode or bad:
        raise Unavailable(bad[0] if bad else f"apt-get {verb} exited {done.returncode}")
