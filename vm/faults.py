"""docs/faults.md: what each injected fault came to, from docs/faults.json, which `make faults` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vm.markdown import plain
from vm.paths import REPO

JSON, MARKDOWN = REPO / "docs/faults.json", REPO / "docs/faults.md"
PLACES = {
    "guest": "In the guest: a case, or the kernel under it, misbehaves",
    "host": "On the host: what the run stands on fails, or its user ends it",
    "series": "In the series: a patch that does not do, or does more than it should",
}


def render(file: Path = JSON) -> str:
    """The page; a row that was not as it should be says so."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    bad = [row for row in rows if not row["good"]]
    parts = [
        "# What happens when something goes wrong",
        "Rendered by `perpatch docs` from what `make faults` found. Each row is a test in "
        "[vm/tests/faults](../vm/tests/faults) that injects the fault into a real run and holds what comes of it "
        "against what should: the verdict or the exit status, the reason in one line, all results that had arrived, "
        "no process left, no half-written file in the cache. Seconds are of the wall, on two cores under TCG, from "
        "the start of that test or case to its verdict.",
        f"{len(rows)} faults, {len(rows) - len(bad)} as they should be; "
        f"{sum(row['seconds'] for row in rows) / 60:.0f} minutes together.",
    ]
    for where, title in PLACES.items():
        here = [row for row in rows if row["where"] == where]
        lines = ["| fault | verdict | after | what was said | what was kept |", "|---|---|---|---|---|"]
        parts += [f"## {title}", "\n".join(lines + [_row(row) for row in here])]
    return "\n\n".join(parts) + "\n"


def _row(row: dict[str, Any]) -> str:
    verdict = row["verdict"] if row["good"] else f"**{row['verdict']}: not as it should be**"
    words = [row["fault"], verdict, f"{row['seconds']:.1f} s", anywhere(row["said"])[:200], row["kept"]]
    return "| " + " | ".join(plain(w) for w in words) + " |"


def anywhere(text: str) -> str:
    """Without the directories of the machine that it ran on, and without what no page should hold."""
    return re.sub(r"[^\x20-\x7e\n]", "?", re.sub(r"(?<![\w./])/\S*/(?=[\w.-]+)", "", text))
