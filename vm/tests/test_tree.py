"""Real git on small repositories."""

import os
import subprocess
from pathlib import Path

import pytest

from vm import git, source
from vm.errors import Mistake, StepFailed
from vm.series import Patch, Series
from vm.tree import Tree

MAKEFILE = "VERSION = 5\nPATCHLEVEL = 10\nSUBLEVEL = 1\nEXTRAVERSION =\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A git repository that looks like a kernel, with a hook and a configuration that must stay unused."""
    top = tmp_path / "user"
    top.mkdir()
    git.run(top, "init", "--quiet")
    (top / "Makefile").write_text(MAKEFILE)
    (top / "f.c").write_text("one\ntwo\nthree\n")
    git.run(top, "add", ".")
    git.run(top, "commit", "--quiet", "-m", "base")
    return top


def patch(kernel: Path, before: str, after: str, title: str) -> Patch:
    """A patch made by git itself from f.c's text before and after."""
    (kernel / "f.c").write_text(before)
    git.run(kernel, "commit", "--quiet", "--allow-empty", "-am", "tmp")
    (kernel / "f.c").write_text(after)
    git.run(kernel, "commit", "--quiet", "-am", title)
    mail = git.run(kernel, "format-patch", "-1", "--stdout").encode()
    git.run(kernel, "reset", "--quiet", "--hard", "HEAD~2")
    return Patch(title, title, mail)


def tree_of(kernel: Path, tmp_path: Path, *patches: Patch) -> Tree:
    found = source.find("", str(kernel), None, None, print)
    return Tree(tmp_path / "clone/tree", found, Series("s", "t", patches), tmp_path / "logs")


def test_a_tree_walks_forwards_and_back(kernel: Path, tmp_path: Path) -> None:
    base = (kernel / "f.c").read_text()
    one = patch(kernel, base, "one\nTWO\nthree\n", "upper")
    two = patch(kernel, "one\nTWO\nthree\n", "one\nTWO\nTHREE\n", "more")
    tree = tree_of(kernel, tmp_path, one, two)
    seen = []
    for step in (0, 1, 2, 1):
        tree.go(step)
        seen.append((tree.path / "f.c").read_text().split())
    assert seen == [["one", "two", "three"], ["one", "TWO", "three"], ["one", "TWO", "THREE"], ["one", "TWO", "three"]]


def test_a_tree_that_another_run_has_moved_meanwhile_is_brought_back(kernel: Path, tmp_path: Path) -> None:
    one = patch(kernel, (kernel / "f.c").read_text(), "one\nTWO\nthree\n", "upper")
    two = patch(kernel, "one\nTWO\nthree\n", "one\nTWO\nTHREE\n", "more")
    mine, theirs = (tree_of(kernel, tmp_path, one, two) for _ in range(2))
    mine.go(1)
    theirs.go(2)
    mine.go(2)
    assert (mine.path / "f.c").read_text().split() == ["one", "TWO", "THREE"]
    theirs.go(0)
    mine.go(2)
    assert (mine.path / "f.c").read_text().split() == ["one", "TWO", "THREE"]


def test_a_file_that_ends_up_as_it_was_keeps_its_time(kernel: Path, tmp_path: Path) -> None:
    base = (kernel / "f.c").read_text()
    one = patch(kernel, base, "one\nTWO\nthree\n", "upper")
    two = patch(kernel, "one\nTWO\nthree\n", "one\nTWO\nTHREE\n", "more")
    first = tree_of(kernel, tmp_path, one, two)
    first.go(1)
    os.utime(first.path / "f.c", (1, 1))
    again = tree_of(kernel, tmp_path, one, two)
    again.go(1)
    assert (again.path / "f.c").stat().st_mtime == 1
    tree_of(kernel, tmp_path, one, two).go(2)
    assert (again.path / "f.c").stat().st_mtime > 1


def test_nothing_is_written_into_the_users_repository(kernel: Path, tmp_path: Path) -> None:
    one = patch(kernel, (kernel / "f.c").read_text(), "x\n", "x")
    hook = kernel / ".git/hooks/applypatch-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    # Content, not times: git sets the time of a borrowed object that it would otherwise have to write again.
    before = {p: p.read_bytes() for p in kernel.rglob("*") if p.is_file()}
    tree_of(kernel, tmp_path, one).go(1)
    assert {p: p.read_bytes() for p in kernel.rglob("*") if p.is_file()} == before
    assert not (tmp_path / "hooked").exists()


def test_a_patch_that_does_not_apply_says_which_where_and_on_what(kernel: Path, tmp_path: Path) -> None:
    bad = patch(kernel, "quite\nsomething\nelse\n", "quite\nother\nelse\n", "bad")
    tree = tree_of(kernel, tmp_path, bad)
    with pytest.raises(StepFailed) as failed:
        tree.go(1)
    assert failed.value.verdict == "NO_APPLY"
    assert failed.value.reason == "s: patch 1/1 does not apply on v5.10.1: f.c:1"
    assert failed.value.log and "patch failed" in failed.value.log.read_text()
    tree.go(0)  # and the base can still be had
    assert (tree.path / "f.c").read_text() == "one\ntwo\nthree\n"


def test_a_tree_that_was_left_inside_git_am_recovers(kernel: Path, tmp_path: Path) -> None:
    one = patch(kernel, (kernel / "f.c").read_text(), "one\nTWO\nthree\n", "upper")
    tree = tree_of(kernel, tmp_path, one)
    tree.go(0)
    subprocess.run(
        ["git", "am"], cwd=tree.path, input=b"From: x <x@y>\nSubject: x\n\ndiff --git a/q b/q\n", capture_output=True
    )
    (tree.path / ".git/index.lock").touch()
    again = tree_of(kernel, tmp_path, one)
    again.go(1)
    assert (again.path / "f.c").read_text() == "one\nTWO\nthree\n"


@pytest.mark.parametrize(
    ("tree", "rev", "says"),
    [
        ("/nonexistent", None, "not a git repository"),
        (None, "v5.10", "needs the git tree"),
        ("kernel", "no-such-rev", "no such revision"),
    ],
)
def test_a_tree_that_is_not_there(kernel: Path, tree: str | None, rev: str | None, says: str) -> None:
    with pytest.raises(Mistake, match=says):
        source.find("5.10", str(kernel) if tree == "kernel" else tree, rev, None, print)


def test_a_tarball_is_held_against_its_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERPATCH_CACHE", str(tmp_path / "cache"))
    top = tmp_path / "linux-5.10.1"
    top.mkdir()
    (top / "Makefile").write_text(MAKEFILE)
    tar = tmp_path / "linux.tar"
    subprocess.run(["tar", "-cf", tar, "-C", tmp_path, top.name], check=True)
    with pytest.raises(Mistake, match="no sha256"):
        source.find("5.10", None, None, str(tar), print)
    with pytest.raises(Mistake, match="its sha256 is"):
        source.find("5.10", None, None, f"{tar}#{'0' * 64}", print)
    import hashlib

    found = source.find("5.10", None, None, f"{tar}#{hashlib.sha256(tar.read_bytes()).hexdigest()}", print)
    assert found.label == "v5.10.1"
    assert git.read(Path(found.repo), "show", f"{found.commit}:Makefile").startswith("VERSION = 5")
