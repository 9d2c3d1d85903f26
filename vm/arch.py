"""What is particular to an architecture, read from its data file in vm/arch/."""

from __future__ import annotations

import platform
import tomllib
from dataclasses import dataclass

from vm.errors import Mistake
from vm.paths import VM


@dataclass(frozen=True)
class Arch:
    """See vm/arch/x86_64.toml for what each field means; icount_shift: one instruction is 2^shift virtual ns."""

    name: str
    make_arch: str
    cross_compile: str
    target: str
    image: str
    qemu: str
    console: str
    machine: tuple[str, ...]
    cpu_tcg: str
    cpu_kvm: str
    append: str
    icount_shift: int


def load(name: str | None = None) -> Arch:
    """The data of an architecture (default: this machine's); Mistake lists the known ones."""
    name = name or platform.machine()
    file = VM / "arch" / f"{name}.toml"
    if not file.is_file():
        have = ", ".join(sorted(p.stem for p in file.parent.glob("*.toml")))
        raise Mistake(f"architecture {name}: no data file: known are {have}: describe it in vm/arch/{name}.toml")
    toml = tomllib.loads(file.read_text())
    return Arch(name=name, machine=tuple(toml.pop("machine")), **toml)
