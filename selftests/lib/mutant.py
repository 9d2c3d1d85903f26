"""The deliberate fault that is active in this guest: see patches/mutants."""

import json
from functools import cache
from pathlib import Path

ACTIVE = Path("/sys/module/mutant/parameters/active")
CHOSEN = Path(__file__).parents[1] / "data" / "options.json"  # written by the host, see vm/chosen.py


@cache
def activate() -> None:
    """Switch to what the host has chosen, once a session; OSError or RuntimeError where the kernel does not do it."""
    if not (name := json.loads(CHOSEN.read_text()).get("mutant")):
        return
    ACTIVE.write_text(name)
    if (active := ACTIVE.read_text().strip()) != name:
        raise RuntimeError(f"{ACTIVE} says {active!r}, not {name!r}")
