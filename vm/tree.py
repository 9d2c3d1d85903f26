"""Stage 2: base + k patches in a private clone that borrows the source's objects; nothing is written into it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from vm import git
from vm.errors import StepFailed
from vm.series import Series
from vm.source import Source


class Tree:
    """A work tree that is walked from step to step, so that the next build compiles only what a patch touches."""

    def __init__(self, path: Path, source: Source, series: Series, logs: Path) -> None:
        self.path = path
        self.source = source
        self.series = series
        self.logs = logs
        self.at: int | None = None
        self.head = ""  # the commit that we left it at

    def _clone(self) -> None:
        alternates = self.path / ".git/objects/info/alternates"
        borrowed = alternates.read_text().strip() if alternates.is_file() else ""
        if Path(borrowed or "/nowhere").parent not in (Path(self.source.repo), Path(self.source.repo) / ".git"):
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            git.run(self.path.parent, "clone", "--quiet", "--shared", "--no-checkout", self.source.repo, str(self.path))

    def go(self, step: int) -> None:
        """Bring the tree to a step. StepFailed (NO_APPLY) with patch, file and line where a patch does not apply."""
        if self.at is None or self.at > step or self._moved():
            self._clone()
            before = self._times()
            # A run that was killed inside `git am` leaves its state; --force checkout alone would keep it.
            shutil.rmtree(self.path / ".git/rebase-apply", ignore_errors=True)
            (self.path / ".git/index.lock").unlink(missing_ok=True)
            git.run(self.path, "checkout", "--quiet", "--force", "--detach", self.source.commit)
            git.run(self.path, "clean", "-qfdx")
            self.at = 0
        else:
            before = None
        while self.at < step:
            self._apply(self.at + 1)
            self.at += 1
        if before:
            self._keep_times(*before)
        self.head = git.read(self.path, "rev-parse", "HEAD")

    def _moved(self) -> bool:
        """Whether another run has had the tree since: between two steps nobody holds it."""
        return git.read(self.path, "rev-parse", "HEAD") != self.head or (self.path / ".git/rebase-apply").exists()

    def _times(self) -> tuple[str, dict[Path, int]] | None:
        """The commit that the work tree is at, and the times of the files in which it differs from the base."""
        try:
            old = git.read(self.path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
            files = git.read(self.path, "diff", "--name-only", self.source.commit, old).splitlines()
        except git.Failed:
            return None  # a fresh clone, or one of another base
        paths = [self.path / f for f in files]
        return old, {p: p.stat().st_mtime_ns for p in paths if p.is_file()}

    def _keep_times(self, old: str, times: dict[Path, int]) -> None:
        """Give files back their time where the way through the base left their content as it was: make goes by it."""
        changed = {self.path / f for f in git.read(self.path, "diff", "--name-only", old, "HEAD").splitlines()}
        for path, mtime in times.items():
            if path not in changed and path.is_file():
                os.utime(path, ns=(mtime, mtime))

    def _apply(self, k: int) -> None:
        patch = self.series.patches[k - 1]
        try:
            git.run(self.path, "am", "--quiet", "--no-3way", "--keep-non-patch", data=patch.mail)
        except git.Failed as e:
            log = self.logs / f"am-{k}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"git am of patch {k} ({patch.id}) on {self.source.label}\n{e}\n")
            self.at = None
            raise StepFailed(
                "NO_APPLY",
                f"{self.series.name}: patch {k}/{len(self.series.patches)} does not apply on "
                f"{self.source.label}: {_where(str(e))}",
                log,
            ) from None


def _where(text: str) -> str:
    """The first line of git's output that names the place, as file:line where there is one."""
    place = re.search(r"error: patch failed: (\S+:\d+)", text)
    if place:
        return place[1]
    said = re.search(r"^(?:error|fatal): (.+)$", text, re.M)
    return said[1] if said else (text.splitlines() or ["git am said nothing"])[0]
