"""Known issues of released kernels, as patches/SERIES/known-issues.toml has them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from vm.errors import Mistake


@dataclass(frozen=True)
class Issue:
    """One fault of released kernels.

    affects: versions that have it, as measured; "|" between ranges (">=5.16,<6.12.113 | >=6.13,<7.2").
    evidence: why it says so for what lies between the measured versions. fixed_by: upstream commit, or "" where none
    is known. reproducer: a file under selftests/reproducers/. measured: kernel version -> what it said there.
    """

    id: str
    title: str
    symptom: str
    affects: str
    reproducer: str
    fixed_by: str = ""
    evidence: str = ""
    measured: Mapping[str, str] = field(default_factory=dict, hash=False)

    def has(self, version: str) -> bool:
        """Whether the kernel of this upstream version has it; InvalidSpecifier where `affects` is none."""
        return any([Version(version) in SpecifierSet(part) for part in self.affects.split("|")])


def load(path: Path) -> tuple[Issue, ...]:
    """The known issues of a series directory, none where it has no such file; Mistake where one is not well-formed."""
    where = path / "known-issues.toml"
    if not where.is_file():
        return ()
    try:
        issues = tuple(Issue(**row) for row in tomllib.loads(where.read_text())["issue"])
        for issue in issues:
            issue.has("0")
    except (tomllib.TOMLDecodeError, KeyError, TypeError, InvalidSpecifier) as e:
        raise Mistake(f"{where}: {e}: each [[issue]] has id, title, symptom, affects, reproducer") from None
    return issues
