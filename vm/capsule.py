"""`perpatch capsule`: a red cell as a directory that needs nothing but QEMU: kernel, root, the case, one QEMU line."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vm import arch, flavour, image, root
from vm.cases import Case
from vm.errors import Mistake
from vm.guest import machine_for, selftests_tar
from vm.image import Image
from vm.paths import writable
from vm.plugin import collect
from vm.qemu import Machine

ORDER = "order.disk"
SCRIPT = """#!/bin/sh
# {case}
# on {kernel}: {verdict}: {reason}
# The guest boots, runs the case in pytest's own words, and switches itself off.
cd "$(dirname "$0")" || exit 1
exec {line} "$@"
"""


def capsule(
    results: Annotated[Path, typer.Argument(help="a results directory, or its results.json")],
    case: Annotated[str, typer.Option(help="part of the case's name (default: the first red one)")] = "",
    step: Annotated[str, typer.Option(help="the column: base, 2/3, debian:6.1 (default: where it is red)")] = "",
    into: Annotated[Path | None, typer.Option("--into", help="the directory (default: beside the results)")] = None,
) -> None:
    """Pack one cell of a run: ./run.sh in the directory boots its kernel and runs its case; needs only QEMU."""
    file = results / "results.json" if results.is_dir() else results
    try:
        run = json.loads(file.read_text())
    except (OSError, ValueError) as e:
        raise Mistake(f"{file}: not the results of a run: {e}") from None
    cell = _cell(run, case, step)
    where = into or file.parent / "capsule"
    writable(where)
    pack(run, cell, where)
    typer.echo(f"{where}/run.sh: {cell['case']} on {cell['step']}: {cell['verdict']}: {cell['reason']}")


def _cell(run: dict[str, Any], case: str, step: str) -> dict[str, Any]:
    """The cell that was asked for; Mistake where no cell, or no kernel, is of that name."""
    named = [c for c in run["cells"] if case in c["case"] and step in ("", c["step"])]
    # A name alone means where that case is red; where both are given, the cell may be green.
    found = [c for c in named if c["red"]] or (named if case and step else [])
    if not found:
        what = f"no red cell of {case!r} on {step or 'any step'}: name both to pack a green one" if named else (
            f"no cell of {case or 'any case'} on {step or 'any step'}: its steps are "
            + ", ".join(s["name"] for s in run["steps"])
        )  # fmt: skip
        raise Mistake(f"capsule: {what}")
    return dict(found[0])


def pack(run: dict[str, Any], cell: dict[str, Any], where: Path) -> None:
    """Copy kernel and root, write the order that the guest reads from a disk, and the script."""
    column = next(s for s in run["steps"] if s["name"] == cell["step"])
    key = str(column["kernel"]["key"]) if column["kernel"] else ""
    kernel = image.cached(key) if key.isalnum() else None  # a file that somebody sent may say anything
    if kernel is None:
        raise Mistake(f"capsule: {cell['step']}: its kernel is not in the cache any more: run the case again")
    data = arch.load()
    functional = run["accelerator"]["name"] or "icount"
    of_cell = _case(run["series"]["name"], cell["case"])
    machine = machine_for(of_cell, data, functional, flavour.load(run["flavour"]))
    order = json.dumps({"tar": selftests_tar(), "nodeids": [cell["case"]]}).encode()
    (where / ORDER).write_bytes(order + bytes(-len(order) % 512))
    line = qemu_line(machine, kernel, where)
    script = where / "run.sh"
    words = {key: " ".join(str(cell[key]).split()) for key in ("case", "verdict", "reason")}
    script.write_text(SCRIPT.format(kernel=cell["step"], line=shlex.join(line), **words))
    script.chmod(0o755)


def _case(series: str, nodeid: str) -> Case:
    found = collect(series, [nodeid])
    if len(found) != 1:
        raise Mistake(f"capsule: {nodeid}: not among the cases of {series} any more")
    return found[0]


def qemu_line(machine: Machine, kernel: Image, where: Path) -> list[str]:
    """The line that the guest is booted with, with files of its own directory; they are copied there."""
    disk = f"/dev/vd{'c' if kernel.initramfs else 'b'}"
    machine = replace(machine, append=f"{machine.append} perpatch.capsule={disk}".strip())
    line = machine.line(kernel, root.image())
    for file in (kernel.kernel, kernel.initramfs, kernel.modules, root.image()):
        if file and str(file) in " ".join(line):
            shutil.copy(file, where)
            line = [word.replace(str(file), Path(file).name) for word in line]
    return [*line, "-drive", f"file={ORDER},if=virtio,format=raw,readonly=on", "-serial", "stdio"]
