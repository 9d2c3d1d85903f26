"""The command `perpatch mutate`: a campaign of deliberate faults, its table and its exit status."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from vm import arch, derive, kills, mutants, qemu, series, source
from vm.campaign import Campaign, Kernels
from vm.cases import Case
from vm.errors import Mistake
from vm.kernel import place
from vm.kills import Table
from vm.mutants import Mutant
from vm.options import BaseOption, SchedulerOption, SeriesOption, TarballOption, TreeOption
from vm.paths import REPO, SELFTESTS, writable
from vm.plugin import DEFAULT_SERIES, EVERY_CASE, collect
from vm.series import Patch, Series

JSON, MARKDOWN = REPO / "docs/mutants.json", REPO / "docs/mutants.md"
DERIVED_JSON, DERIVED = REPO / "docs/derived.json", REPO / "docs/derived.md"


def mutate(
    ids: Annotated[list[str] | None, typer.Argument(help="faults to try (default: all that somebody can see)")] = None,
    series_word: SeriesOption = DEFAULT_SERIES,
    named: Annotated[bool, typer.Option("--named", help="every case that names a fault in red_on must be red")] = False,
    everything: Annotated[bool, typer.Option("--all", help="go on after a fault's first kill, with all cases")] = False,
    generate: Annotated[bool, typer.Option("--generate", help="faults made from the series by rules")] = False,
    sample: Annotated[int, typer.Option(min=0, help="only so many, spread over all (0: all)")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="guests at a time")] = os.cpu_count() or 1,
    results: Annotated[
        Path | None, typer.Option(help="where to write, or an interrupted campaign (default: results/<time>-mutants)")
    ] = None,
    scheduler: SchedulerOption = None,
    keep: Annotated[bool, typer.Option("--docs", help="keep the table in docs/, as JSON and Markdown")] = False,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Activate each deliberate fault and run the cases that name it, then the others, until one is red."""
    mode = "named" if named else "all" if everything else "first"
    if named and everything:
        raise Mistake("--named, --all: one runs fewer cases, the other more: give one of them")
    if named and generate:
        raise Mistake("--named, --generate: no case names a fault that was made by a rule: give one of them")
    if keep and (ids or named or sample):
        raise Mistake(
            "--docs: keeps what the whole campaign found: leave --named, --sample and the names of faults out"
        )
    under_test = series.load(series_word)
    find = functools.cache(lambda: source.find(under_test.base, tree, base, tarball, typer.echo))
    known = derive.load(under_test, find()) if generate else mutants.load(under_test)
    chosen = spread(choose(known, ids or [], everything), sample)
    every, suite = collect(series_word, EVERY_CASE), collect(series_word, [])
    mutants.check(every)
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-mutants"
    with place(scheduler, jobs) as (guests, at_once):
        writable(into)
        table = begun(into, under_test, known, mode)
        table.measured_with = {"qemu": qemu.version(arch.load().qemu), "guests at a time": str(at_once)}
        try:
            kernels = Kernels(under_test, find, into, typer.echo, guests)
            Campaign(table, chosen, suite, every, kernels, at_once, lambda: table.write(into / "kill.json")).fill()
        finally:
            table.write(into / "kill.json")
            (into / "kill.md").write_text(page(table, chosen, every, "Written by `perpatch mutate`."))
    typer.echo((into / "kill.md").read_text())
    typer.echo(f"results: {into}")
    if keep and generate:
        describe(table, chosen)
        table.write(DERIVED_JSON)
        DERIVED.write_text(derived_document(under_test))
    elif keep:
        table.write(JSON)
        MARKDOWN.write_text(document(under_test, every))
    raise typer.Exit(0 if good(table, chosen, naming(chosen, every)) else 1)


def choose(known: list[Mutant], ids: list[str], everything: bool) -> list[Mutant]:
    """The faults of these ids, else all; those that nobody can see only if they are named, or with everything."""
    if unknown := [word for word in ids if word not in {m.id for m in known}]:
        raise Mistake(f"mutant {unknown[0]}: not known: one of {', '.join(m.id for m in known)}")
    return [m for m in known if m.id in ids or (not ids and (everything or not m.equivalent))]


def spread(chosen: list[Mutant], sample: int) -> list[Mutant]:
    """So many of them, evenly from first to last; all for 0."""
    count = min(sample or len(chosen), len(chosen))
    return [chosen[n * len(chosen) // count] for n in range(count)]


def begun(into: Path, under_test: Series, known: list[Mutant], mode: str) -> Table:
    """The table in a directory, of an interrupted campaign, or a new one. Mistake where it is of another campaign."""
    of = hashlib.sha256()
    patches = [*under_test.patches, *(m.patch for m in known)]
    for part in [*(p.mail for p in patches), *(p.read_bytes() for p in sorted(SELFTESTS.rglob("*.py")))]:
        of.update(hashlib.sha256(part).digest())
    if not (into / "kill.json").is_file():
        return Table(under_test.name, mode, of.hexdigest())
    table = kills.read(into / "kill.json")
    if (table.series, table.mode, table.of) != (under_test.name, mode, of.hexdigest()):
        raise Mistake(f"--results {into}: has a campaign of other faults, other cases or another mode: give another")
    return table


def naming(chosen: list[Mutant], every: list[Case]) -> dict[str, list[str]]:
    """The cases that name each fault in red_on."""
    return {m.id: [c.nodeid for c in every if m.id in c.red_on] for m in chosen}


def page(table: Table, chosen: list[Mutant], every: list[Case], made_of: str) -> str:
    """The table as Markdown."""
    return kills.render(table, chosen, naming(chosen, every), made_of)


def document(under_test: Series, every: list[Case]) -> str:
    """docs/mutants.md, from the campaign that was kept and the faults as they are now."""
    made_of = (
        f"Rendered from [mutants.json](mutants.json), which `perpatch mutate --docs` keeps, and from "
        f"[mutants.toml](../patches/mutants/{under_test.name}/mutants.toml) by `perpatch docs`."
    )
    return page(kills.read(JSON), mutants.load(under_test), every, made_of)


def describe(table: Table, chosen: list[Mutant]) -> None:
    """Write into the table what derived faults are."""
    for m in chosen:
        row = table.rows[m.id]
        row.breaks, row.what, row.diff = m.breaks, m.what, "" if row.by() else m.diff


def derived_document(under_test: Series) -> str:
    """docs/derived.md, from the campaign that was kept; "" where none was."""
    if not DERIVED_JSON.is_file():
        return ""
    table, proofs = kills.read(DERIVED_JSON), derive.proofs(under_test)
    patch = Patch("derived", "", b"")
    faults = [Mutant(row.id, row.breaks, row.what, patch, diff=row.diff) for row in table.rows.values()]
    made_of = (
        "Faults made from the patches by rules: each condition negated, each statement dropped, each constant one "
        "more, each hunk reverted. Rendered by `perpatch docs` from [derived.json](derived.json), which "
        "`perpatch mutate --generate --docs` keeps"
        + (f", and from [derived.toml]({os.path.relpath(proofs, DERIVED.parent)})." if proofs.is_file() else ".")
    )
    return page(table, derive.proven(faults, proofs), [], made_of)


def good(table: Table, chosen: list[Mutant], named: dict[str, list[str]]) -> bool:
    """Whether every fault was killed but for those that nobody can see; in mode named by each case that names it."""
    for m in chosen:
        row = table.rows[m.id]
        if bool(row.by()) == bool(m.equivalent) or row.trouble():
            return False
        if table.mode == "named" and not row.no_guest[0] and set(named[m.id]) - set(row.kills):
            return False
    return True
