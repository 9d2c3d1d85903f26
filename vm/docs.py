"""What the cases and the known issues say, for people: `perpatch list`, and the documents of `perpatch docs`.

The documents under docs/ are rendered from data, so that they cannot fall behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vm import claims, contract, cover, covered, faults, kept, mutate, plots, series
from vm.cases import behaviours
from vm.errors import Mistake
from vm.issues import Issue
from vm.paths import PATCHES, REPO
from vm.plugin import DEFAULT_SERIES, EVERY_CASE, collect
from vm.series import Series

DOCS = REPO / "docs"
REPRODUCERS = "selftests/reproducers"


def rendered(under_test: Series) -> dict[Path, str]:
    """Every document, as it has to be."""
    cases = collect(under_test.name, EVERY_CASE)
    return {
        DOCS / "known-issues.md": known_issues(under_test),
        DOCS / "contract.md": contract.render(under_test, cases),
        faults.MARKDOWN: faults.render(),
        claims.MARKDOWN: claims.render(claims.load(), kept.read(), plots.load()),
        mutate.MARKDOWN: mutate.document(under_test, cases),
        **({mutate.DERIVED: derived} if (derived := mutate.derived_document(under_test)) else {}),
        cover.MARKDOWN: covered.document(covered.read(cover.JSON)),
    }


def known_issues(under_test: Series) -> str:
    """docs/known-issues.md: a table of issues by measured kernels, then each issue in full."""
    issues = under_test.issues
    source = (PATCHES / under_test.name / "known-issues.toml").relative_to(REPO)
    kernels = list(dict.fromkeys(version for issue in issues for version in issue.measured))
    parts = [
        f"# Known issues of released kernels: {under_test.name}",
        f"Rendered from [{source}](../{source}) by `perpatch docs`: edit that file, not this one.",
        "What released kernels do wrong, found or confirmed by the cases of this project. The series here has none of "
        f"them. Each has a reproducer in [{REPRODUCERS}](../{REPRODUCERS}): plain Python 3, no other file needed, to "
        "be run as root, best in a virtual machine. It prints one line and exits 0 (`ok`), 1 (`BUG`) or 77 (`skip`: "
        "the kernel lacks the option).",
        "\n".join(_table(issues, kernels)),
        *(_section(issue) for issue in issues),
    ]
    return "\n\n".join(parts) + "\n"


def _table(issues: tuple[Issue, ...], kernels: list[str]) -> list[str]:
    rows = [["issue", *kernels], ["---"] * (len(kernels) + 1)]
    rows += [[f"[{i.id}](#{i.id})", *(_word(i.measured.get(k, "")) for k in kernels)] for i in issues]
    return [f"| {' | '.join(row)} |" for row in rows]


def _word(said: str) -> str:
    """The first word of what a reproducer said: BUG, ok or skip; "" where it was not run."""
    word = said.partition(":")[0]
    return f"**{word}**" if word == "BUG" else word


def _section(issue: Issue) -> str:
    script = f"{REPRODUCERS}/{issue.reproducer}"
    return "\n\n".join(
        [
            f"## {issue.id}",
            f"**{issue.title}.** {issue.symptom}",
            f"- Affected: `{issue.affects}`. {issue.evidence}\n"
            f"- Fixed by: {issue.fixed_by or 'no fix is known'}\n"
            f"- Reproducer: [{script}](../{script}), `sudo python3 {issue.reproducer}`; it printed:",
            "\n".join(["```", *(f"{version + ':':11}{said}" for version, said in issue.measured.items()), "```"]),
        ]
    )


def docs(
    check: Annotated[bool, typer.Option("--check", help="write nothing; fail where a document is not current")] = False,
    series_word: Annotated[str, typer.Option("--series", help="a name under patches/")] = DEFAULT_SERIES,
) -> None:
    """Render the documents under docs/ that are made from data."""
    stale = {path: text for path, text in rendered(series.load(series_word)).items() if _current(path) != text}
    data = kept.read().points()
    faded = [plot for plot in plots.load() if not plots.current(plot, data)]
    if check and (stale or faded):
        files = [*stale, *(plot.file("svg") for plot in faded)]
        raise Mistake(f"{', '.join(str(p.relative_to(REPO)) for p in files)}: not current: run 'perpatch docs'")
    for path, text in stale.items():
        path.write_text(text)
        typer.echo(f"wrote {path.relative_to(REPO)}")
    for plot in faded:
        plots.draw(plot, data)
        typer.echo(f"wrote {plot.file('svg').relative_to(REPO)} and .png")


def listing(
    series_word: Annotated[str | None, typer.Option("--series", help="only the cases of this series")] = None,
) -> None:
    """List the series and their patches, then every behaviour with its patch and its place."""
    names = [series_word] if series_word else series.known()
    for name in names:
        under_test = series.load(name)
        typer.echo(f"{under_test.name}: {under_test.title}")
        for k, patch in enumerate(under_test.patches, 1):
            typer.echo(f"  {under_test.step_name(k)} {patch.id}: {patch.title}")
        for function, cases in behaviours(collect(name, EVERY_CASE)).items():
            tied = cases[0].introduced_by[1] if cases[0].introduced_by else "invariant"
            times = f" ({len(cases)} cases)" if len(cases) > 1 else ""
            typer.echo(f"  [{tied}] {cases[0].says} -- {function.removeprefix('selftests/')}{times}")


def _current(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
