"""Steps as lines of Python, and as a case that can be pasted into a file of selftests/so_reserve_mem."""

import functools
import re
import textwrap
from types import CodeType

IMPORTS = {
    "errno": "import errno",
    "socket": "import socket",
    "time": "import time",
    "suppress": "from contextlib import suppress",
    "pytest": "import pytest",
    "books": "from selftests.lib import books",
    "sock": "from selftests.lib import sock",
    "Cgroup": "from selftests.lib.cgroup import Cgroup",
    "Pressure": "from selftests.lib.pressure import Pressure",
}
FIXTURES = {"sockets": "sock.Sockets", "own_cgroup": "Cgroup", "pressure": "Pressure"}


def as_case(lines: list[str]) -> str:
    """The case whose body these steps are."""
    body = textwrap.indent("\n".join(lines), "    ")
    return f"{heading(body)}\n{body}"


def heading(body: str) -> str:
    """What stands above the steps: the imports and fixtures that they use."""

    def used(name: str, text: str) -> bool:
        return re.search(rf"\b{name}\b", text) is not None

    fixtures = ", ".join(f"{name}: {kind}" for name, kind in FIXTURES.items() if used(name, body))
    case = ['@pytest.mark.introduced_by("so-reserve-mem", "option")', f"def test_found({fixtures}) -> None:"]
    imports = [line for name, line in IMPORTS.items() if used(name, "\n".join([*case, body]))]
    return "\n".join([*imports, "", "", *case, '    """What the steps below do keeps the books in balance."""'])


@functools.cache
def compiled(line: str) -> CodeType:
    """One step, ready to be executed; most come again and again."""
    return compile(line, "<step>", "exec")


class Disagreement(AssertionError):
    """The kernel did not do what the model says; carries the steps that led there."""

    def __init__(self, what: str, lines: list[str]) -> None:
        super().__init__(what)
        self.what, self.lines = what, lines
