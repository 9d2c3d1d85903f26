"""What a case is judged against: a step of a series, or a kernel that was built elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from vm import released, series, source
from vm.arch import Arch
from vm.image import Builder, Image
from vm.series import Series


@dataclass(frozen=True)
class Subject:
    """One column of the matrix.

    name: base, 1/3, debian:6.1. series: the one under test. patches: ids of its patches that this kernel carries.
    issues: ids of the known issues that this kernel has. why_without: why it is taken for a kernel without the series.
    """

    name: str
    series: Series
    patches: frozenset[str]
    issues: frozenset[str] = frozenset()
    why_without: str = ""


def step_subject(of: Series, step: int) -> Subject:
    """Step k carries the patches 1..k, and none of the issues of released kernels: a series may have none of them."""
    return Subject(of.step_name(step), of, frozenset(p.id for p in of.patches[:step]))


def released_subject(under_test: Series, word: str, version: str) -> Subject:
    """A kernel by its upstream version (6.1.170): it carries all of the series from the version that merged it on."""
    merged = bool(under_test.merged_in) and Version(version) >= Version(under_test.merged_in)
    patches = frozenset(p.id for p in under_test.patches) if merged else frozenset()
    issues = frozenset(i.id for i in under_test.issues if i.has(version))
    why = "" if merged else f": {version} is older than merged_in ({under_test.merged_in or 'not given'})"
    return Subject(word, under_test, patches, issues, why)


def bring(
    word: str, under_test: Series, arch: Arch, logs: Path, say: released.Say, tree: str | None, base: str | None
) -> tuple[Image, Subject]:
    """The kernel that --kernel names, and what it carries of the series under test.

    word: SERIES@STEP (built if the cache lacks it, on tree at base where given), or what released.find() takes. Mistake
    and StepFailed as there.
    """
    name, at, step = word.rpartition("@")
    if not at or Path(word).is_file():
        image = released.find(word, arch, say)
        return image, released_subject(under_test, word, image.version)
    other = series.load(name)
    k = other.step(step)
    found = source.find(other.base, tree, base, None, say)
    image = Builder(found, other, arch, logs).image(k)
    carries = step_subject(other, k).patches if other.name == under_test.name else frozenset[str]()
    return image, replace(step_subject(under_test, 0), name=word, patches=carries)
