"""The stand-alone reproducers of what released kernels do wrong; on a series that is right each of them says ok."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selftests.lib import link

SKIPPED = 77
SCRIPTS = Path(__file__).parent.parent / "reproducers"


LEAKED = "BUG: |TCP pages in /proc/net/sockstat|sockstat cannot be made exact"  # the books do not balance afterwards


def reproducer(id: str, *red_on: str, symptom: str = "BUG: ", needs: str = "option") -> object:
    """A parameter: the script's name, which is the issue's id, and what was seen to turn it red."""
    marks = [pytest.mark.known_issue(id, symptom=symptom), pytest.mark.red_on(*red_on)]
    marks += [pytest.mark.fresh] if symptom == LEAKED else []  # the guest is of no use to another case
    marks += [pytest.mark.introduced_by("so-reserve-mem", needs)] if needs else []
    return pytest.param(id, marks=marks, id=id)


@pytest.mark.parametrize(
    "id",
    [
        reproducer("overflow-int-max", "6.1", symptom=LEAKED),
        reproducer("udp-accepted", "6.1"),
        reproducer("zerocopy-eats-reservation", "6.1"),
        reproducer("errqueue-eats-reservation", "6.1"),
        reproducer("window-clamp-ignored", "6.1"),
        reproducer("sndbuf-shrinks", "6.1"),
        reproducer("sndbuf-overshoots", "6.1"),
        reproducer("clamps-unreserved", "6.1"),
        reproducer("failed-charge-leaks", "7.3", symptom=LEAKED, needs=""),
    ],
)
def test_reproducer(id: str) -> None:
    """The reproducer of an issue of released kernels does not find it (docs/known-issues.md)."""
    # -S: none of our libraries, which it does not need, and an earlier start
    done = in_initial_namespace([sys.executable, "-S", str(SCRIPTS / f"{id}.py")])
    said = done.stdout.strip() or done.stderr.strip()
    print(said)  # for `pytest -rP`
    if done.returncode == SKIPPED and os.strerror(errno.ENOPROTOOPT) in said:
        raise OSError(errno.ENOPROTOOPT, said)
    if done.returncode == SKIPPED:
        pytest.skip(said.removeprefix("skip: "))
    assert done.returncode == 0, said


def in_initial_namespace(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the network namespace of PID 1, the only one that has tcp_mem."""
    with open("/proc/1/ns/net") as first:
        return subprocess.run(
            command, preexec_fn=lambda: link.setns(first.fileno()), capture_output=True, text=True, check=False
        )
