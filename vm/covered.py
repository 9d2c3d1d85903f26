"""Which of the lines that a series adds ran, and the views of that: table, annotated diff, JSON, document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vm import git, tables
from vm.commits import Repository
from vm.errors import Mistake
from vm.markdown import plain
from vm.paths import PATCHES, VM
from vm.series import Series

_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True)
class Line:
    """A line with code that a patch added, as it stands at the last step.

    first: the first case, in the order of collection, that ran it; "" where none did. why: why none can.
    """

    file: str
    line: int
    patch: str
    text: str
    first: str = ""
    why: str = ""


@dataclass(frozen=True)
class Covered:
    """What the cases ran of a series. patches: id and title. cases: how many sent their counters. source: the base."""

    series: str
    source: str
    patches: tuple[tuple[str, str], ...]
    cases: int
    lines: tuple[Line, ...]

    def of(self, patch: str) -> list[Line]:
        """The lines of one patch."""
        return [line for line in self.lines if line.patch == patch]

    def missed(self) -> list[Line]:
        """Lines that no case ran, those that nobody can explain first."""
        return sorted((line for line in self.lines if not line.first), key=lambda line: bool(line.why))

    def good(self) -> bool:
        """Whether every line ran, or is known not to be able to."""
        return all(line.first or line.why for line in self.lines)

    def as_json(self) -> dict[str, Any]:
        """As results.json and docs/coverage.json hold it."""
        shares = [{"id": id, "title": title, **_counts(self.of(id))} for id, title in self.patches]
        lines = [asdict(line) for line in self.lines]
        return {"series": self.series, "source": self.source, "cases": self.cases, "patches": shares, "lines": lines}


def from_json(row: dict[str, Any]) -> Covered:
    """What as_json() made."""
    patches = tuple((patch["id"], patch["title"]) for patch in row["patches"])
    return Covered(row["series"], row["source"], patches, row["cases"], tuple(Line(**line) for line in row["lines"]))


def _counts(lines: list[Line]) -> dict[str, int]:
    return {"lines": len(lines), "ran": sum(bool(line.first) for line in lines)}


def reasons(series: Series) -> dict[tuple[str, str], str]:
    """Why some lines cannot run, by file and text: patches/SERIES/unreached.toml, which need not be there.

    [[line]] with file, text (without white space around it) and why. Not by number: a line moves.
    """
    file = PATCHES / series.name / "unreached.toml"
    rows = tables.rows(file, "line", lambda row: (row["file"], row["text"], row["why"])) if file.is_file() else ()
    return {(name, text): why for name, text, why in rows}


def stale(covered: Covered, known: Iterable[tuple[str, str]]) -> list[str]:
    """What unreached.toml says of lines that ran, or that are not there."""
    missed = {(line.file, line.text) for line in covered.missed()}
    return [f"{file}: {text}" for file, text in known if (file, text) not in missed]


def table(covered: Covered) -> str:
    """Markdown: a row a patch; the lines that none ran; which cases ran lines that no case before them had run."""
    rows = ["| patch | lines of code added | ran | share | cannot run |", "|---|--:|--:|--:|--:|"]
    for n, (id, title) in enumerate(covered.patches, 1):
        lines = covered.of(id)
        ran, known = sum(bool(line.first) for line in lines), sum(bool(line.why) for line in lines)
        share = f"{100 * ran / len(lines):.1f} %" if lines else "no code"
        rows.append(f"| {n}/{len(covered.patches)} {plain(title)} | {len(lines)} | {ran} | {share} | {known} |")
    missed = covered.missed()
    rows += ["", "No case ran:", ""] if missed else ["", "Every line ran."]
    rows += [f"- {_place(line)}: `{line.text}`: {plain(line.why) or '**nobody has said why**'}" for line in missed]
    first = Counter(line.first for line in covered.lines if line.first)
    rows += ["", "| lines that no case before had run | case |", "|--:|---|"] if first else []
    rows += [f"| {count} | {plain(case.removeprefix('selftests/'))} |" for case, count in first.items()]
    return "\n".join(rows) + "\n"


def _place(line: Line) -> str:
    return f"{line.file}:{line.line} ({line.patch})"


@dataclass(frozen=True)
class Annotated:
    """A line of a patch's diff. mark: ran, missed, known (cannot run), or "" where there is no code to run."""

    text: str
    mark: str = ""
    said: str = ""


def annotate(covered: Covered, repository: Repository) -> list[tuple[str, list[Annotated]]]:
    """Each patch's title and diff, with what ran first, or why nothing did, beside the lines that it added."""
    known = {(line.file, line.line): line for line in covered.lines}
    lines: dict[tuple[str, str, int], Line] = {}  # by patch, file and number at its own step
    for file in {line.file for line in covered.lines}:
        for last, (patch, own) in repository.added(file).items():
            if line := known.get((file, last)):
                lines[patch.id, file, own] = line
    found = []
    for k, patch in enumerate(repository.series.patches, 1):
        diff = git.run(repository.git, "diff", *repository.commits[k - 1 : k + 1])
        found.append((patch.title, [_annotated(t, at, patch.id, lines) for t, at in _numbered(diff)]))
    return found


def _numbered(diff: str) -> Iterable[tuple[str, tuple[str, int]]]:
    """The lines of a diff; where one is added, in which file and which line of it."""
    file, number = "", 0
    for text in diff.splitlines():
        if text.startswith("+++ "):
            file = text.removeprefix("+++ b/")
        elif start := _HUNK.match(text):
            number = int(start[1])
        elif text[:1] in ("+", " ") and number:
            yield text, (file, number if text[0] == "+" else 0)
            number += 1
            continue
        if text.startswith("diff --git"):
            number = 0
        yield text, (file, 0)


def _annotated(text: str, at: tuple[str, int], patch: str, lines: dict[tuple[str, str, int], Line]) -> Annotated:
    line = lines.get((patch, *at))
    if not line:
        return Annotated(text)
    if line.first:
        return Annotated(text, "ran", line.first)
    return Annotated(text, "known" if line.why else "missed", line.why or "no case ran it")


def as_text(patches: list[tuple[str, list[Annotated]]]) -> str:
    """The annotated diff for a terminal: in front of each line with code the number of the case that ran it first."""
    cases: dict[str, int] = {}
    out = []
    for title, diff in patches:
        out += [title, ""]
        for line in diff:
            mark = {"ran": "", "missed": "#####", "known": "-----"}.get(line.mark, "")
            if line.mark == "ran":
                mark = str(cases.setdefault(line.said, len(cases) + 1))
            out.append(f"{mark:>6} | {line.text}".rstrip())
        out.append("")
    legend = [f"{n:6}   {case}" for case, n in cases.items()]
    return "\n".join(
        [*out, "##### no case ran it; ----- it cannot run; a number: the case that ran it first", *legend, ""]
    )


def as_html(covered: Covered, patches: list[tuple[str, list[Annotated]]]) -> str:
    """The annotated diff as a page of its own."""
    pages = Environment(loader=FileSystemLoader(VM / "templates"), autoescape=True, undefined=StrictUndefined)
    shares = {title: _counts(covered.of(id)) for id, title in covered.patches}
    return pages.get_template("coverage.html").render(covered=covered, patches=patches, shares=shares)


def read(file: Path) -> dict[str, Covered]:
    """What docs/coverage.json holds, by series; Mistake where it is damaged."""
    try:
        rows = json.loads(file.read_text()) if file.is_file() else []
        return {row["series"]: from_json(row) for row in rows}
    except (ValueError, KeyError, TypeError) as e:
        raise Mistake(f"{file}: {e}: 'perpatch cover --docs' writes it anew") from None


def write(file: Path, kept: dict[str, Covered]) -> None:
    """Keep what read() reads."""
    file.write_text(json.dumps([kept[name].as_json() for name in sorted(kept)], indent=1) + "\n")


def document(kept: dict[str, Covered]) -> str:
    """docs/coverage.md."""
    parts = [
        "# Which of the lines that a series adds run",
        "Rendered from [coverage.json](coverage.json) by `perpatch docs`; `perpatch cover --series NAME --docs` "
        "measures anew. A line counts if the compiler made code of it at the last step; it ran if some case ran it, "
        "whatever became of the case. Lines that a later patch of the series replaces are not counted.",
    ]
    for name in sorted(kept):
        covered = kept[name]
        parts += [f"## {name}", f"{covered.cases} cases, on {covered.source}.", table(covered).strip()]
    return "\n\n".join(parts) + "\n"
