"""The steps of a series as commits of a bare repository: what each patch adds where, and further patches on top."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from vm import arch, csource, git
from vm.errors import Mistake
from vm.series import Patch, Series
from vm.source import Source

_BLAMED = re.compile(r"^([0-9a-f]{40}) (\d+) (\d+)(?: \d+)?$", re.M)


class Repository:
    """The steps of a series as commits of a bare repository: no work tree, no build directory, seconds."""

    def __init__(self, path: Path, source: Source, series: Series) -> None:
        self.path, self.source, self.series = path, source, series
        git.run(path, "clone", "--quiet", "--bare", "--shared", source.repo, "git")
        self.git = path / "git"
        self.commits = [source.commit]
        git.run(self.git, "read-tree", source.commit)
        for k, patch in enumerate(series.patches, 1):
            try:
                git.run(self.git, "apply", "--cached", "-", data=patch.mail)
            except git.Failed as e:
                where = str(e).splitlines()[0]
                raise Mistake(f"{series.name}: patch {k} does not apply on {source.label}: {where}") from None
            self.commits.append(self.commit(patch.title))

    def commit(self, title: str) -> str:
        """The index as a commit on the last step."""
        tree = git.read(self.git, "write-tree")
        return git.read(self.git, "commit-tree", tree, "-p", self.commits[-1], "-m", title)

    def text(self, file: str) -> bytes:
        """A file at the last step."""
        return git.run(self.git, "cat-file", "blob", f"{self.commits[-1]}:{file}").encode()

    def changes_code(self, file: str) -> bool:
        """Whether the index has other code in a file than the last step, not only other comments."""
        there = git.run(self.git, "cat-file", "blob", f":{file}").encode()
        return csource.words(there) != csource.words(self.text(file))

    def put(self, file: str, text: bytes) -> None:
        """Bring a file into the index."""
        blob = git.run(self.git, "hash-object", "-w", "--stdin", data=text).strip()
        git.run(self.git, "update-index", "--add", "--cacheinfo", f"100644,{blob},{file}")

    def added(self, file: str) -> dict[int, tuple[Patch, int]]:
        """Which patch brought each line of a file, of those that the series brought, and which line of its own step."""
        by_commit = dict(zip(self.commits[1:], self.series.patches, strict=True))
        said = git.run(self.git, "blame", "--porcelain", f"{self.source.commit}..{self.commits[-1]}", "--", file)
        lines = (match.groups() for match in _BLAMED.finditer(said))
        return {int(last): (by_commit[commit], int(own)) for commit, own, last in lines if commit in by_commit}

    def touched(self, frm: str, to: str) -> list[str]:
        """The C files that differ and that this architecture compiles."""
        files = git.run(self.git, "diff", "--name-only", "--diff-filter=d", frm, to).splitlines()
        return self.ours(f for f in files if f.endswith((".c", ".h")))

    def ours(self, files: Iterable[str]) -> list[str]:
        """Those that are not another architecture's."""
        here = f"arch/{arch.load().make_arch}/"
        return [f for f in files if f.startswith(here) or not f.startswith("arch/")]

    def mail(self, title: str) -> bytes:
        """What the index has beyond the last step, as a mail for git am; the index is the last step's again."""
        commit = self.commit(title)
        git.run(self.git, "read-tree", self.commits[-1])
        return git.run(self.git, "format-patch", "-1", "--stdout", "--zero-commit", "--no-signature", commit).encode()

    def holding(self, names: set[str], *paths: str) -> list[str]:
        """The files of the last step below paths that have one of these words."""
        words = [part for name in sorted(names) for part in ("-e", name)]
        try:
            found = git.run(self.git, "grep", "-lwF", *words, self.commits[-1], "--", *paths)
        except git.Failed:  # none
            return []
        return [line.removeprefix(f"{self.commits[-1]}:") for line in found.splitlines()]

    def has(self, file: str) -> bool:
        """Whether the last step has a file."""
        return bool(git.read(self.git, "ls-tree", "--name-only", self.commits[-1], "--", file))
