"""docs/contract.md: the cases as a specification, one line a behaviour, made from their docstrings."""

from __future__ import annotations

from itertools import groupby

from vm.cases import Case, behaviours
from vm.markdown import plain
from vm.series import Series


def render(under_test: Series, cases: list[Case]) -> str:
    """Markdown: a section for each patch and one for what holds on every step, a row a behaviour."""
    lines = [
        f"# What {under_test.name} promises",
        "",
        "One line a behaviour, made from the docstrings of the cases by `perpatch docs`: change it there. A case of a",
        "patch fails on every step before it and passes from it on; `red on` names the deliberate breaks",
        "(patches/mutants) and released kernels that were seen to turn it red.",
    ]
    sections = [(p.id, f"{under_test.step_name(k)} {p.title}") for k, p in enumerate(under_test.patches, 1)]
    sections.append(("", "Holds on every step, the base included"))
    for patch, title in sections:
        mine = [c for c in cases if (c.introduced_by[1] if c.introduced_by else "") == patch]
        lines += ["", f"## {title}", "", f"{len(behaviours(mine))} behaviours, {len(mine)} cases."]
        for module, of_module in groupby(mine, key=lambda c: c.module):
            lines += [
                "",
                f"### {module.removeprefix('selftests/')}",
                "",
                "| behaviour | case | red on |",
                "|---|---|---|",
            ]
            lines += [_row(function, same) for function, same in behaviours(list(of_module)).items()]
    return "\n".join(lines) + "\n"


def _row(function: str, cases: list[Case]) -> str:
    breaks = dict.fromkeys(word for c in cases for word in c.red_on)
    times = f" ({len(cases)})" if len(cases) > 1 else ""
    return f"| {plain(cases[0].says)} | {plain(function.rpartition('::')[2])}{times} | {', '.join(breaks)} |"
