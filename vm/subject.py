"""What a case is judged against: a step of a series, or a kernel that was built elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vm.series import Series


@dataclass(frozen=True)
class Subject:
    """One column of the matrix.

    name: base, 1/3, debian:6.1. series: the one under test. patches: ids of its patches that this kernel carries.
    issues: ids of the known issues that this kernel has.
    """

    name: str
    series: Series
    patches: frozenset[str]
    issues: frozenset[str] = frozenset()


def step_subject(series: Series, step: int) -> Subject:
    """Step k carries the patches 1..k, and none of the issues of released kernels: a series may have none of them."""
    return Subject(series.step_name(step), series, frozenset(p.id for p in series.patches[:step]))


def released_subject(series: Series, word: str, version: str) -> Subject:
    """A kernel by its upstream version (6.1.170): it carries all of the series from the version that merged it on."""
    merged = bool(series.merged_in) and Version(version) >= Version(series.merged_in)
    issues = frozenset(i.id for i in series.issues if Version(version) in SpecifierSet(i.affects))
    return Subject(word, series, frozenset(p.id for p in series.patches) if merged else frozenset(), issues)
