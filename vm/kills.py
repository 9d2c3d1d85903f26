"""The kill table: which case catches which fault. Kept as kill.json, shown as kill.md and docs/mutants.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vm import mutants
from vm.errors import Mistake
from vm.markdown import plain
from vm.mutants import Mutant
from vm.reports import Cell
from vm.verdict import Verdict, red

KILLS = (Verdict.FAIL, Verdict.SPLAT, Verdict.PANIC, Verdict.HANG, Verdict.LOST)
NO_GUEST = {"NO_BUILD": "the compiler", "NO_BOOT": "the boot"}
MODES = {
    "first": "stopped at the first kill of each fault",
    "named": "only the cases that name a fault in red_on, all of them",
    "all": "every case on every fault",
}


@dataclass
class Row:
    """What became of one fault.

    kills, held: verdict and reason, or verdict, of each case that ran; a kill is one that its baseline does not have.
    no_guest: verdict and reason where there was no guest to run a case in. breaks, what, diff: of a fault that no file
    describes, because it was derived; diff only where it survived.
    """

    id: str
    kills: dict[str, tuple[str, str]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    no_guest: tuple[str, str] = ("", "")
    seconds: float = 0.0
    breaks: str = ""
    what: str = ""
    diff: str = ""

    def add(self, cell: Cell) -> None:
        """Take a cell."""
        if kills(cell):
            self.kills[cell.case] = str(cell.verdict), cell.reason
        else:
            self.held[cell.case] = str(cell.verdict)

    def compare(self, baseline: dict[str, str]) -> None:
        """Take back the kills by cases that are red with no fault active too, or whose verdict then is not known."""
        for case, (verdict, _) in list(self.kills.items()):
            if red(Verdict(baseline.get(case, "LOST"))):
                self.held[case] = verdict
                del self.kills[case]

    def trouble(self) -> str:
        """Why nobody knows whether a fault that was not killed is seen: cases that did not get as far as the kernel."""
        untold = ("ERROR", "INFRA", "LOST")
        if self.no_guest[0] and self.no_guest[0] not in NO_GUEST:
            return ": ".join(self.no_guest)
        bad = [f"{case} {verdict}" for case, verdict in self.held.items() if verdict in untold]
        return "" if self.kills or not bad else f"{len(bad)} of {len(self.held)} cases did not run: {bad[0]}"

    def by(self) -> str:
        """Who killed it, in a few words; "" where nobody did."""
        if self.no_guest[0] in NO_GUEST:
            return f"{NO_GUEST[self.no_guest[0]]} ({self.no_guest[1]})"
        first = [f"{_short(case)} {verdict}" for case, (verdict, _) in self.kills.items()]
        return first[0] + (f" and {len(first) - 1} more" if len(first) > 1 else "") if first else ""


def kills(cell: Cell) -> bool:
    """Red by the fault's own doing: a guest that left in the middle of the case counts, trouble of ours does not."""
    died = cell.verdict is not Verdict.LOST or cell.console != ""
    return cell.verdict in KILLS and died


@dataclass
class Table:
    """A campaign. of: what it was run with and on, so that another is not taken for it. mode: one of MODES.

    baseline: the verdict with no fault active of each case that killed, by kernel (see campaign.kernel_of()).
    """

    series: str
    mode: str
    of: str = ""
    measured_with: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    baseline: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def write(self, into: Path) -> None:
        """kill.json, a row a line, whole or not at all."""
        head = {k: v for k, v in asdict(self).items() if k != "rows"}
        said = [{k: v for k, v in asdict(row).items() if v != ""} for row in self.rows.values()]
        rows = ",\n".join(map(json.dumps, said))
        half = into.with_suffix(".half")
        half.write_text(json.dumps(head)[:-1] + f', "rows": [\n{rows}\n]}}\n')
        half.rename(into)


def read(file: Path) -> Table:
    """What Table.write() wrote; Mistake where it is something else."""
    try:
        data = json.loads(file.read_text())
        rows = [Row(**row) for row in data.pop("rows")]
        for row in rows:
            row.no_guest = (row.no_guest[0], row.no_guest[1])
            row.kills = {case: (said[0], said[1]) for case, said in row.kills.items()}
        return Table(**data, rows={row.id: row for row in rows})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as e:
        raise Mistake(f"{file}: no kill table: {e}") from None


def render(table: Table, chosen: Iterable[Mutant], named: dict[str, list[str]], source: str) -> str:
    """Markdown: survivors first, each with its fault; then who killed what, who killed nothing, and the equivalents.

    named: the cases that name each mutant in red_on. source: a sentence on what this was made of.
    """
    chosen = list(chosen)
    row = {m.id: table.rows.get(m.id, Row(m.id)) for m in chosen}
    killed = [m for m in chosen if row[m.id].by()]
    untold = [m for m in chosen if m not in killed and (row[m.id].trouble() or m.id not in table.rows)]
    alive = [m for m in chosen if m not in killed and m not in untold and not m.equivalent]
    unseen = [m for m in chosen if m.equivalent]
    untold = [m for m in untold if not m.equivalent]
    lines = [
        f"# What the cases catch: {table.series}",
        "",
        source,
        "",
        f"{len(chosen)} faults: {len([m for m in killed if not m.equivalent])} killed, {len(alive)} survived, "
        f"{len(unseen)} equivalent, {len(untold)} without a result; {MODES[table.mode]}. "
        f"{sum(map(len, table.baseline.values()))} cases that were red with a fault ran with none active as well, "
        f"{len(_red(table))} of them were red then too. It took {table.seconds / 60:.1f} minutes"
        + "".join(f", {what} {which}" for what, which in table.measured_with.items())
        + ".",
    ]
    lines += _survivors(alive, row)
    if untold:
        lines += ["", "## No result", "", *(f"- {m.id}: {row[m.id].trouble() or 'not tried'}" for m in untold)]
    if bad := _red(table):
        lines += ["", "## Red with no fault active: these kill nothing", "", *(f"- {line}" for line in bad)]
    lines += ["", "## Killed", "", "| fault | breaks | what a user sees | killed by |", "|---|---|---|---|"]
    lines += [f"| {_id(m)} | {m.breaks} | {plain(m.what)} | {plain(row[m.id].by())} |" for m in killed]
    if table.mode == "named":
        lines += _not_red(chosen, row, named)
    lines += _equivalents(unseen, row)
    lines += _idle(table)
    return "\n".join(lines) + "\n"


def _survivors(alive: list[Mutant], row: dict[str, Row]) -> list[str]:
    if not alive:
        return ["", "Nothing survived."]
    lines = ["", "## Survivors"]
    for m in alive:
        ran = f"{len(row[m.id].held)} cases ran and held."
        lines += ["", f"### {m.id}", "", f"{plain(m.what)} ({m.breaks}). {ran}"]
        lines += ["", "```diff", mutants.fault(m), "```"]
    return lines


def _not_red(chosen: list[Mutant], row: dict[str, Row], named: dict[str, list[str]]) -> list[str]:
    missing = [(m.id, case) for m in chosen for case in named.get(m.id, []) if case not in row[m.id].kills]
    if not missing:
        return ["", "Every case that names a fault in red_on was red with it."]
    said = [f"- {id}: {_short(case)} {row[id].held.get(case, 'did not run')}" for id, case in missing]
    return ["", "## Names a fault in red_on, and was not red with it", "", *said]


def _equivalents(unseen: list[Mutant], row: dict[str, Row]) -> list[str]:
    lines = ["", "## Equivalent: nobody can see them", "", "| fault | breaks | proof | cases that ran and held |"]
    lines += ["|---|---|---|---|"]
    for m in unseen:
        ran = f"killed by {row[m.id].by()}: the proof is wrong" if row[m.id].by() else str(len(row[m.id].held))
        lines += [f"| {m.id} | {m.breaks} | {plain(m.equivalent)} | {plain(ran)} |"]
    return lines if unseen else []


def _idle(table: Table) -> list[str]:
    """Cases that ran with a fault active, and killed none."""
    ran = {case for r in table.rows.values() for case in (*r.held, *r.kills)}
    idle = sorted(ran - {case for r in table.rows.values() for case in r.kills})
    partly = "" if table.mode == "all" else f" Not every case ran with every fault: {MODES[table.mode]}."
    lines = ["", "## Cases that killed nothing", "", f"{len(idle)} of the {len(ran)} that ran with a fault.{partly}"]
    return [*lines, "", *(f"- {_short(case)}" for case in idle)] if idle else lines


def _red(table: Table) -> list[str]:
    of_all = [(kernel, case, v) for kernel, cells in table.baseline.items() for case, v in cells.items()]
    return [f"{_short(case)} {v} {kernel}".rstrip() for kernel, case, v in of_all if red(Verdict(v))]


def _id(m: Mutant) -> str:
    return m.id + (" (hard)" if m.hard else "")


def _short(case: str) -> str:
    return case.removeprefix("selftests/")
