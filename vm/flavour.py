"""Flavours of a kernel (vm/kconfig/flavours.toml): what they add to its config, and to the guest."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace

from vm.cases import Case
from vm.errors import Mistake
from vm.paths import VM
from vm.series import Series


@dataclass(frozen=True)
class Flavour:
    """A flavour, as a rule a debug kernel; the default has no name and adds nothing.

    config: Kconfig lines. append: kernel arguments. memory: MiB. cpus: of guests that do not measure; more than one
    means real time. slower: factor for the deadline of a case.
    """

    name: str = ""
    what: str = ""
    config: str = ""
    append: str = ""
    memory: int = 1024
    cpus: int = 1
    slower: float = 1.0


PLAIN = Flavour()


def known() -> dict[str, Flavour]:
    """Every flavour by its name."""
    rows = tomllib.loads((VM / "kconfig/flavours.toml").read_text())
    return {name: Flavour(name=name, **row) for name, row in rows.items()}


def load(name: str) -> Flavour:
    """The flavour of that name, the plain one for ""; Mistake lists the known ones."""
    flavours = known() | {"": PLAIN}
    if name not in flavours:
        raise Mistake(f"--flavour {name}: not known: one of {', '.join(sorted(known()))}")
    return flavours[name]


def patient(cases: list[Case], flavour: Flavour) -> list[Case]:
    """The cases with deadlines that suit the flavour."""
    return [replace(c, timeout=c.timeout * flavour.slower) for c in cases] if flavour.name else cases


def build_as(series: Series, flavour: Flavour) -> Series:
    """The series with what a flavour adds to the config of every step."""
    return (
        replace(series, fragment=f"{series.fragment}\n{flavour.config}", flavour=flavour.name)
        if flavour.name
        else series
    )
