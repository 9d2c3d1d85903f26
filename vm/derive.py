"""Faults that nobody thought of: made from a series by a rule, to be fair to its cases (`perpatch mutate --generate`).

Of what the patches add to functions, at the last step: each condition negated, each statement dropped, each constant
one more (csource.py); these are compiled into one image, at most one active, as the hand-written ones are. And each
hunk reverted, which takes an image of its own.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vm import csource, git, tables
from vm.commits import Repository
from vm.csource import Place
from vm.errors import Mistake
from vm.mutants import MUTANTS, Mutant
from vm.paths import VM
from vm.series import Patch, Series
from vm.source import Source

SCHEMATA = VM / "schemata"
KINDS = {"negate": "negated", "drop": "dropped", "shift": "one more"}
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)$")
_INCLUDE = re.compile(rb"^#include ", re.M)
_MAKEFILE, _HEADER, _CODE = "net/core/Makefile", "include/net/mutant.h", "net/core/mutant.c"


@dataclass(frozen=True)
class _Found:
    """A place, in which file it is, and which patch added it."""

    file: str
    patch: Patch
    place: Place


def load(series: Series, source: Source) -> list[Mutant]:
    """Every fault that the rules make of a series. Mistake where a patch does not apply, or adds no code."""
    with tempfile.TemporaryDirectory() as scratch:
        repository = Repository(Path(scratch), source, series)
        found = [*_schemata(repository), *_reverts(repository)]
    if not found:
        raise Mistake(f"{series.name}: --generate: its patches add nothing to the code of a function")
    return proven(found, proofs(series))


def proofs(series: Series) -> Path:
    """The file that says which of the derived faults nobody can see; there need not be one."""
    return MUTANTS / series.name / "derived.toml"


def proven(found: list[Mutant], file: Path) -> list[Mutant]:
    """The faults with the proofs that nobody can see some of them. Mistake where a proof is of another fault.

    file: [[equivalent]] with id, what (see without_line(): a proof must not outlive what it is about) and proof.
    """
    if not file.is_file():
        return found
    known = {m.id: without_line(m.what) for m in found}

    def take(row: dict[str, Any]) -> tuple[str, str]:
        id, what, proof = row["id"], row["what"], row["proof"]
        if known.get(id) != what:
            raise ValueError(f"{id} is {known.get(id, 'no fault that the rules make')!r} now, not {what!r}")
        return id, proof

    proof = dict(tables.rows(file, "equivalent", take))
    return [replace(m, equivalent=proof.get(m.id, "")) for m in found]


def without_line(what: str) -> str:
    """What a fault is, as long as it only moves."""
    return re.sub(r":\d+:", ":", what, count=1)


def _schemata(repository: Repository) -> list[Mutant]:
    found: dict[str, _Found] = {}
    times: Counter[str] = Counter()
    for file in repository.touched(repository.commits[0], repository.commits[-1]):
        text, lines = repository.text(file), repository.added(file)
        chosen: list[tuple[str, Place]] = []
        for place in csource.places(text, set(lines)):
            stem = re.sub(r"[\W_]+", "-", f"{place.kind}-{place.function}").strip("-")
            times[stem] += 1
            id = f"{stem}-{times[stem]}"
            found[id] = _Found(file, lines[place.line][0], place)
            chosen.append((id, place))
        if chosen:
            repository.put(file, _included(_changed(text, chosen)))
    if not found:
        return []
    listed = " \\\n".join(f"\tM({_name(id)})" for id in found)
    repository.put(_HEADER, (SCHEMATA / "mutant.h").read_text().replace("@LIST@", listed).encode())
    repository.put(_CODE, (SCHEMATA / "mutant.c").read_bytes())
    repository.put(_MAKEFILE, repository.text(_MAKEFILE) + b"\nobj-y += mutant.o\n")
    patch = Patch("derived", "all derived faults, one active", repository.mail("mutants: all that the rules make"))
    return [
        Mutant(
            id,
            f.patch.id,
            f"{f.file}:{f.place.line}: {f.place.function}(): {KINDS[f.place.kind]}: {_one_line(f.place.text)}",
            patch,
            name=_name(id),
            diff=_diff(f.file, repository.text(f.file), f.place),
        )
        for id, f in found.items()
    ]


def _reverts(repository: Repository) -> list[Mutant]:
    """One fault for each hunk of code that can be taken back alone: later hunks and patches may stand on it."""
    found = []
    for k, patch in enumerate(repository.series.patches, 1):
        before, after = repository.commits[k - 1 : k + 1]
        for file in repository.touched(before, after):
            diff = git.run(repository.git, "diff", before, after, "--", file)
            head, *hunks = re.split(r"^(?=@@ )", diff, flags=re.M)
            for n, hunk in enumerate(hunks, 1):
                try:
                    git.run(repository.git, "apply", "--cached", "-R", "--recount", "-", data=(head + hunk).encode())
                except git.Failed:
                    continue
                if not repository.changes_code(file):
                    git.run(repository.git, "read-tree", repository.commits[-1])
                    continue
                id = f"revert-{patch.id}-{re.sub(r'[^a-z0-9]+', '-', file.lower())}-{n}"
                place = _HUNK.match(hunk.splitlines()[0])
                what = f"{file}:{place[1] if place else '?'}: hunk {n} of {len(hunks)} reverted"
                found.append(Mutant(id, patch.id, what, Patch(id, what, repository.mail(what)), diff=f"{file}\n{hunk}"))
    return found


def _changed(text: bytes, chosen: list[tuple[str, Place]]) -> bytes:
    """The text with a choice around each place; places may hold others."""
    inserts: list[tuple[tuple[int, ...], bytes]] = []
    for n, (id, place) in enumerate(chosen):
        before, after = (part.replace("@", f"MUTANT({_name(id)})").encode() for part in place.around)
        length = place.end - place.start
        # At one position: first what ends there, the inner one first; then what begins there, the outer one first.
        inserts += [((place.start, 1, -length, n), before), ((place.end, 0, length, -n), after)]
    for (at, *_), what in sorted(inserts, reverse=True):
        text = text[:at] + what + text[at:]
    return text


def _included(text: bytes) -> bytes:
    """The text with mutant.h before the first header that it includes."""
    first = _INCLUDE.search(text)
    at = first.start() if first else 0
    return text[:at] + b"#include <net/mutant.h>\n" + text[at:]


def _diff(file: str, text: bytes, place: Place) -> str:
    """The fault as if it stood there alone."""
    wrong = text[: place.start] + place.wrong.encode() + text[place.end :]
    old, new = (t.decode(errors="replace").splitlines() for t in (text, wrong))
    lines = difflib.unified_diff(old, new, f"a/{file}", f"b/{file}", n=3, lineterm="")
    return "\n".join(lines)


def _name(id: str) -> str:
    return id.replace("-", "_")


def _one_line(text: str) -> str:
    return " ".join(text.split())
