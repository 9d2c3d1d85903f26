"""A series that is broken, or hostile: the right step is blamed, with the reason, and nothing outside is touched."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from vm import git, source
from vm.paths import PATCHES
from vm.series import load
from vm.source import Source
from vm.tests.faults.command import last_line, start
from vm.tests.faults.conftest import Row

pytestmark = pytest.mark.fault

MAILS = [p.read_bytes() for p in sorted((PATCHES / "so-reserve-mem").glob("*.patch"))]
OURS = [re.sub(rb"^Subject: \[PATCH[^\]]*\]", b"Subject: [PATCH]", m, count=1, flags=re.M) for m in MAILS]
TCP = "net/ipv4/tcp.c"
ESCAPED = Path("/tmp/escaped-perpatch")
AUTHOR = "perpatch developers <perpatch@example.org>"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work tree of the base, to make patches in; the objects are the cache's."""
    found = base()
    where = tmp_path_factory.mktemp("k") / "linux"
    git.run(where.parent, "clone", "--quiet", "--shared", "--no-checkout", found.repo, str(where))
    git.run(where, "checkout", "--quiet", found.commit, "--", "net/ipv4/tcp.c", "Makefile", "kernel/panic.c")
    git.run(where, "reset", "--quiet", "--soft", found.commit)
    return where


def edit(tree: Path, file: str, old: str, new: str, title: str) -> bytes:
    """A patch, as git writes it, that replaces one text of a file; the tree is as before."""
    text = (tree / file).read_text()
    assert text.count(old) == 1, old
    (tree / file).write_text(text.replace(old, new))
    diff = git.run(tree, "diff", "HEAD", "--", file)
    (tree / file).write_text(text)
    return mail(title, diff)


def mail(title: str, diff: str, author: str = AUTHOR, number: str = "") -> bytes:
    tags = f"[PATCH{number}] "
    head = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {author}\nDate: Tue, 28 Sep 2021 13:00:00 +0000\n"
    return f"{head}Subject: {tags}{title}\n\nWhat it says.\n---\n{diff}--\n2.39\n\n".encode("latin-1")


def written(tmp_path: Path, mails: list[bytes]) -> Path:
    """A series of these mails; it shares the build directory with the series of that name."""
    where = tmp_path / "so-reserve-mem"
    where.mkdir()
    for n, text in enumerate(mails, 1):
        (where / f"{n:04}-a.patch").write_bytes(text)
    return where


def base() -> Source:
    return source.find(load("so-reserve-mem").base, None, None, None, print)


def on_base(series: Path) -> list[str]:
    """The words that say what is built, on the base that our own series has."""
    return ["--series", str(series), "--tree", base().repo, "--base", base().commit]


def build(row: Row, tmp_path: Path, mails: list[bytes], *words: str) -> str:
    """`perpatch build` of a series of these mails."""
    return ran(row, written(tmp_path, mails), *words)


def ran(row: Row, series: Path, *words: str) -> str:
    process = start(["build", *on_base(series), *words])
    said, _ = process.communicate(timeout=900)
    row.verdict, row.said = f"exit status {process.returncode}", last_line(said)
    found_verdict = re.search(r"NO_APPLY|NO_BUILD|NO_BOOT", said)
    if found_verdict:
        row.verdict = found_verdict[0]
    return said


GOOD = ("\tlock_sock(sk);\n\tret = tcp_sendmsg_locked(", "\tlock_sock(sk);\n\tbarrier();\n\tret = tcp_sendmsg_locked(")


def test_does_not_apply(row: Row, tmp_path: Path) -> None:
    said = build(row, tmp_path, OURS[1:2], "--step", "1")
    assert row.verdict == "NO_APPLY"
    assert re.search(r"patch 1/1 does not apply on \S+: \S+:\d+ \(see .*am-1.log\)", said)


def test_applies_with_fuzz_only(row: Row, tree: Path, tmp_path: Path) -> None:
    """git am takes an offset, and no fuzz: what was reviewed is not quite what would be tested."""
    patch = edit(tree, TCP, *GOOD, "tcp: with fuzz").replace(b" \tlock_sock(sk);", b" \tlock_sock(sock->sk);", 1)
    build(row, tmp_path, [patch], "--step", "1")
    assert row.verdict == "NO_APPLY"


def test_applies_with_an_offset(row: Row, tree: Path, tmp_path: Path) -> None:
    patch = edit(tree, TCP, *GOOD, "tcp: at an offset")
    moved = re.sub(
        rb"@@ -(\d+),(\d+) \+(\d+),", lambda m: b"@@ -%d,%s +%d," % (int(m[1]) - 40, m[2], int(m[3]) - 40), patch
    )
    assert moved != patch
    build(row, tmp_path, [moved], "--step", "1")
    assert row.verdict == "exit status 0"


@pytest.mark.parametrize(
    ("what", "diff"),
    [("an empty patch", ""), ("a patch that is text only", "no diff at all\n")],
)
def test_nothing_to_apply(row: Row, what: str, diff: str, tmp_path: Path) -> None:
    row.fault = what
    build(row, tmp_path, [mail("nothing", diff)], "--step", "1")
    assert row.verdict in ("NO_APPLY", "exit status 2")


def test_breaks_the_build_at_its_own_step_only(row: Row, tree: Path, tmp_path: Path) -> None:
    breaks = edit(tree, TCP, *(GOOD[0], GOOD[1].replace("barrier();", "barrier(;")), "tcp: broken for one step")
    mends = breaks.replace(b"broken for one step", b"mended")
    old, new = GOOD[1].replace("barrier();", "barrier(;"), GOOD[1]
    text = (tree / TCP).read_text()
    (tree / TCP).write_text(text.replace(GOOD[0], old))
    git.run(tree, "commit", "--quiet", "-am", "tmp")
    mends = edit(tree, TCP, old, new, "tcp: mended")
    git.run(tree, "reset", "--quiet", "--soft", "HEAD~1")
    (tree / TCP).write_text(text)
    said = build(row, tmp_path, [breaks, mends], "--step", "1", "--step", "2")
    assert "1/2: NO_BUILD" in said and "error:" in said
    assert re.search(r"^2/2: /.*kernel$", said, re.M)


def test_adds_a_warning(row: Row, tree: Path, tmp_path: Path) -> None:
    warns = edit(tree, TCP, GOOD[0], GOOD[0].replace("\tlock_sock", "\tint unused_here;\n\n\tlock_sock"), "tcp: warns")
    said = build(row, tmp_path, [warns], "--step", "base", "--step", "1")
    row.verdict = "a new warning"
    assert re.search(r"1/1: new warning: net/ipv4/tcp.c: unused variable .unused_here.", said)


def test_breaks_the_boot(row: Row, tree: Path, tmp_path: Path) -> None:
    init = "void __init tcp_init(void)\n{\n"
    text = (tree / TCP).read_text()
    head = text[text.index(init) :].split("\n\n")[0]
    panics = edit(tree, TCP, head, head + '\n\n\tpanic("made to");', "tcp: does not come up")
    words = [*on_base(written(tmp_path, [panics])), "--accel", "tcg"]
    process = start(["run", *words, "--step", "1", "-k", "charge", "--results", str(tmp_path / "r")])
    said, _ = process.communicate(timeout=900)
    row.verdict, row.said = "NO_BOOT", last_line(said)
    cells = json.loads((tmp_path / "r/results.json").read_text())["cells"]
    assert {c["verdict"] for c in cells} == {"NO_BOOT"}
    assert all("made to" in c["reason"] for c in cells)
    assert process.returncode == 1


def numbered(n: int, of: int, version: str = "") -> bytes:
    return OURS[n - 1].replace(b"[PATCH]", f"[PATCH{version} {n}/{of}]".encode(), 1)


@pytest.mark.parametrize(
    ("what", "mails", "says"),
    [
        ("two versions in one mbox", [numbered(1, 3), numbered(2, 3, " v2"), numbered(3, 3)], "version"),
        ("a patch of the mbox is missing", [numbered(1, 3), numbered(3, 3)], "it has 1/3, 3/3"),
        ("patches out of order", [numbered(3, 3), numbered(1, 3), numbered(2, 3)], ""),
    ],
)
def test_mbox(row: Row, what: str, mails: list[bytes], says: str, tmp_path: Path) -> None:
    row.fault = what
    mbox = tmp_path / "so-reserve-mem.mbox"
    mbox.write_bytes(b"\n".join(b"From x Mon Sep 17 00:00:00 2001\n" + m.split(b"\n", 1)[1] for m in mails))
    said = ran(row, mbox, "--step", "3" if not says else "1")
    assert row.verdict == ("exit status 2" if says else "exit status 0")
    assert says in said


def test_lines_end_in_cr_lf(row: Row, tmp_path: Path) -> None:
    """As a mailer that knows better leaves them: git am says that it does not apply, or takes it; never half."""
    build(row, tmp_path, [OURS[0].replace(b"\n", b"\r\n")], "--step", "1")
    assert row.verdict in ("NO_APPLY", "exit status 0")


def test_author_in_latin_1(row: Row, tree: Path, tmp_path: Path) -> None:
    patch = edit(tree, TCP, *GOOD, "tcp: by somebody").replace(AUTHOR.encode(), b"Andr\xe9 Mu\xf1oz <a@example.org>")
    build(row, tmp_path, [patch], "--step", "1")
    assert row.verdict == "exit status 0"


def new_file(path: str, text: str, mode: str = "100644") -> str:
    """A diff that makes a file of one line."""
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 000000000000..111111111111\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"
    )


def test_binary_diff(row: Row, tmp_path: Path) -> None:
    diff = new_file("logo.bin", "").split("---")[0] + "Binary files /dev/null and b/logo.bin differ\n"
    build(row, tmp_path, [mail("a picture", diff)], "--step", "1")
    assert row.verdict == "NO_APPLY"


@pytest.mark.parametrize("path", ["../../escaped", str(ESCAPED), ".git/hooks/post-checkout"])
def test_path_outside_the_tree(row: Row, path: str, tmp_path: Path) -> None:
    row.fault = f"a patch that writes {path}"
    build(row, tmp_path, [mail("elsewhere", new_file(path, f"touch {ESCAPED}", "100755"))], "--step", "1")
    assert row.verdict == "NO_APPLY"
    assert not ESCAPED.exists()


def test_symbolic_link_out_of_the_tree(row: Row, tmp_path: Path) -> None:
    link = new_file("out", "/tmp", "120000") + "\\ No newline at end of file\n"
    through = new_file(f"out/{ESCAPED.name}", "here")
    build(row, tmp_path, [mail("a link", link), mail("through it", through)], "--step", "2")
    assert row.verdict == "NO_APPLY"
    assert not ESCAPED.exists()


@pytest.mark.parametrize("name", ["$(touch escaped)", "a; touch escaped", "-rf", "`touch escaped`", "a\nb"])
def test_a_name_that_a_shell_would_act_on(row: Row, name: str, tmp_path: Path) -> None:
    row.fault = f"a patch and a series called {name!r}"
    where = tmp_path / name
    where.mkdir()
    subject = name.replace("\n", " ").encode()
    (where / f"0001-{name}.patch").write_bytes(OURS[1].replace(b"Subject: [PATCH] ", b"Subject: [PATCH] " + subject, 1))
    ran(row, where, "--step", "1")
    assert row.verdict == "NO_APPLY"
    assert not list(tmp_path.rglob("escaped"))
    done = subprocess.run(["git", "status", "--porcelain"], cwd=PATCHES, capture_output=True, text=True, check=True)
    assert "escaped" not in done.stdout
