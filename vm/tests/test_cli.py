"""The command as a user meets it: exit status and one clear line, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from vm import git
from vm.paths import REPO


def perpatch(*args: str, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from vm.cli import main; main()", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--series", "nope"], "series nope: not found"),
        (["run", "--flavour", "nope"], "--flavour nope: not known: one of faults, gcov, kasan"),
        (["run", "--kernel", "host", "--flavour", "kasan"], "--flavour: is a matter of building"),
        (["run", "--kernel", "host", "--guest", "vng"], "--guest vng: cannot run --kernel"),
        (["run", "--kernel", "/nowhere/bzImage"], "--kernel /nowhere/bzImage: no file"),
        (["run", "--kernel", "so-reserve-mem@9"], "no step '9': its steps are base, 1 (option)"),
        (["run", "--step", "9"], "no step '9': its steps are base, 1 (option)"),
        (["run", "--accel", "xen"], "--accel xen: not known: one of auto, kvm, tcg"),
        (["run", "-k", "no_such_case_anywhere"], "no case is left"),
        (["run", "--results", "/proc/nowhere"], "cannot be written"),
        (["run", "--tree", "/nonexistent"], "not a git repository"),
        (["build", "--base", "v5.10"], "needs the git tree that has it"),
        (["run", "vm/tests/test_wire.py"], "no case: those that run in a guest are under selftests/"),
        (["run", "-j", "0"], "--jobs"),
        (["bogus"], "No such command"),
        (["list", "--series", "nope"], "series nope: not found"),
    ],
)
def test_a_users_mistake_is_one_clear_line(args: list[str], says: str) -> None:
    done = perpatch(*args)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_list_names_every_case_with_its_patch() -> None:
    done = perpatch("list", "--series", "so-reserve-mem")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "::" in line]
    assert rows
    assert all("[option]" in r or "[sndbuf]" in r or "[rcv_ssthresh]" in r or "[invariant]" in r for r in rows)


def test_a_red_run_exits_with_1_and_says_where_the_patch_does_not_apply(tmp_path: Path) -> None:
    tree, bad = tmp_path / "tree", tmp_path / "bad"
    for directory in (tree, bad):
        directory.mkdir()
    git.run(tree, "init", "--quiet")
    (tree / "Makefile").write_text("VERSION = 5\nPATCHLEVEL = 10\nSUBLEVEL = 0\n")
    git.run(tree, "add", ".")
    git.run(tree, "commit", "--quiet", "-m", "base")
    diff = "diff --git a/net/x.c b/net/x.c\n--- a/net/x.c\n+++ b/net/x.c\n@@ -7 +7 @@\n-a\n+b\n"
    (bad / "0001-x.patch").write_text(f"From: a <a@b.c>\nSubject: [PATCH] net: x\n\nWhy.\n---\n{diff}--\n2.3\n")
    args = ["--tree", str(tree), "--step", "1", "--results", str(tmp_path / "r"), "selftests/tcp_mem"]
    done = perpatch("run", "--series", str(bad), *args)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bad: patch 1/1 does not apply on v5.10: net/x.c" in done.stdout
    assert "NO_APPLY" in (tmp_path / "r/results.ktap").read_text()
