"""Which added lines ran: what is counted, what the counters say, and what is made of it."""

import base64
import json
import subprocess
import zlib
from pathlib import Path

import jsonschema
import pytest

from vm import covered, csource, gcov, git
from vm.cases import Case
from vm.commits import Repository
from vm.cover import judge
from vm.covered import Covered
from vm.errors import Infra, Mistake
from vm.gcov import Counters
from vm.matrix import Run
from vm.paths import REPO
from vm.series import Patch, Series
from vm.source import Source
from vm.tests.test_derive import BASE, ONE, TWO, made

HEADER = """\
static inline int unused(int a)
{
	return a;
}

#define spare(a) (unused(a) + 1)

static inline int more(int a)
{
	return spare(a);
}

static inline int other(int a)
{
	return a;
}
"""


def test_what_uses_a_name_of_a_header() -> None:
    text = HEADER.encode()
    assert csource.functions(text, {3, 15}) == {"unused", "other"}
    assert csource.using(text, {"unused"}) == {"unused", "spare"}
    assert csource.using(text, {"spare"}) == {"more"}


def tree(tmp_path: Path, files: dict[str, str], changed: dict[str, str]) -> tuple[Repository, Series]:
    """A repository with these files, and a series of one patch that brings others."""
    repo, scratch = tmp_path / "linux", tmp_path / "scratch"
    scratch.mkdir()
    mails = []
    for n, state in enumerate((files, changed)):
        for name, text in state.items():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_text(text)
        if not n:
            git.run(repo, "init", "-q")
        git.run(repo, "add", ".")
        git.run(repo, "commit", "-q", "-m", f"state {n}")
        mails.append(git.run(repo, "format-patch", "-1", "--stdout").encode())
    base = git.read(repo, "rev-parse", "HEAD~1")
    series = Series("made", "made", (Patch("p1", "patch 1", mails[1]),))
    return Repository(
        scratch, Source(str(repo), base, git.read(repo, "rev-parse", f"{base}^{{tree}}"), "v1"), series
    ), series


def test_the_users_of_a_headers_function_are_counted_too(tmp_path: Path) -> None:
    files = {
        "include/a.h": HEADER,
        "net/a/Makefile": "obj-y += direct.o\n",
        "net/a/direct.c": "int f(void) { return unused(1); }\n",
        "net/a/through.c": "int f(void) { return more(1); }\n",
        "net/a/none.c": "int f(void) { return other(1); }\n",
        "arch/arm/kernel/far.c": "int f(void) { return unused(1); }\n",
        "tools/far.c": "int f(void) { return unused(1); }\n",
        "boot/Makefile": "GCOV_PROFILE := n\n",
        "boot/early.c": "int f(void) { return unused(1); }\n",
    }
    repository, _ = tree(tmp_path, files, {"include/a.h": HEADER.replace("\treturn a;", "\treturn a + 1;", 1)})
    assert gcov.files(repository) == ["boot/early.c", "net/a/direct.c", "net/a/through.c"]
    mail = gcov.patch(repository).mail.decode()
    assert "+GCOV_PROFILE_direct.o := y\n+GCOV_PROFILE_through.o := y\n" in mail
    assert "boot/Makefile" not in mail, "what runs without the kernel around it has nowhere to count"


def test_a_series_without_c_files_has_nothing_to_count(tmp_path: Path) -> None:
    repository, _ = tree(tmp_path, {"a.txt": "1\n"}, {"a.txt": "2\n"})
    with pytest.raises(Mistake, match="no C file"):
        gcov.patch(repository)


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Series, Repository, Path]:
    """A series of two patches, and its last step compiled as a program that counts, which ran as f(1) and as f(9)."""
    under_test, source = made(tmp_path, BASE, ONE, TWO)
    scratch, out = tmp_path / "scratch", tmp_path / "out/net/core"
    scratch.mkdir()
    out.mkdir(parents=True)
    repository = Repository(scratch, source, under_test)
    (out / "net/core").mkdir(parents=True)
    (out / "net/core/grant.c").write_bytes(repository.text("net/core/grant.c"))
    (out / "main.c").write_text("#include <stdlib.h>\nint f(int); void done(void) { }\n")
    with (out / "main.c").open("a") as main:
        main.write("int main(int n, char **words) { f(atoi(words[1])); return 0; }\n")
    for object_, file, counts in (("grant.o", "net/core/grant.c", "--coverage"), ("main.o", "main.c", "-O0")):
        subprocess.run(["gcc", "-w", "-O0", "-c", counts, file, "-o", object_], cwd=out, check=True)
    subprocess.run(["gcc", "--coverage", "grant.o", "main.o", "-o", "main"], cwd=out, check=True)
    for argument in ("1", "9"):
        subprocess.run(["./main", argument], cwd=out, check=True)
        (out / "grant.gcda").rename(out / f"{argument}.gcda")
    return under_test, repository, tmp_path / "out"


def sent(out: Path, argument: str) -> dict[str, str]:
    """As selftests/lib/coverage.py sends it."""
    data = (out / f"net/core/{argument}.gcda").read_bytes()
    return {"where/it/was/built/net/core/grant.gcda": base64.b64encode(zlib.compress(data)).decode()}


def read(counted: tuple[Series, Repository, Path], *arguments: str, why: str = "") -> Covered:
    """What is made of cases that called f() with these arguments, in this order."""
    under_test, repository, out = counted
    cases = [Case(f"selftests/test_f.py::test[{a}]", "") for a in arguments]
    counts = {case.nodeid: [sent(out, a)] for case, a in zip(cases, arguments, strict=True)}
    known = {("net/core/grant.c", "done();"): why} if why else {}
    return judge(Run(under_test, repository.source, cases, [], ""), counts, out, repository, known)


def test_the_first_case_that_ran_a_line(counted: tuple[Series, Repository, Path]) -> None:
    what = read(counted, "1", "9")
    first = {line.text: (line.patch, line.first.partition("::")[2]) for line in what.lines}
    assert first["if (a > 3)"] == ("p1", "test[1]"), "both ran it"
    assert first["a = 0;"] == ("p1", "test[9]"), "only that one"
    assert first["done();"] == ("p2", "")
    assert "{" not in first, "no code is made of it"
    assert [row["ran"] for row in what.as_json()["patches"]] == [2, 0]
    assert not what.good()
    assert covered.from_json(json.loads(json.dumps(what.as_json()))) == what


def test_a_line_that_cannot_run_is_named_with_its_reason(counted: tuple[Series, Repository, Path]) -> None:
    what = read(counted, "9", why="nobody calls g()")
    (line,) = [line for line in what.missed() if line.why]
    assert (line.text, line.why) == ("done();", "nobody calls g()")
    assert [line.text for line in what.missed()][-1] == "done();", "those that nobody explains come first"
    assert "`done();`: nobody calls g()" in covered.table(what)
    assert "**nobody has said why**" in covered.table(what)
    file = "net/core/grant.c"
    assert covered.stale(what, [(file, "done();"), (file, "a = 0;"), (file, "gone();")]) == [
        f"{file}: a = 0;",
        f"{file}: gone();",
    ]


def test_the_annotated_diff(counted: tuple[Series, Repository, Path]) -> None:
    _, repository, _ = counted
    what = read(counted, "1", "9")
    annotated = covered.annotate(what, repository)
    text = covered.as_text(annotated)
    assert [title for title, _ in annotated] == ["patch 1", "patch 2"]
    assert "     1 | +\tif (a > 3)\n     2 | +\t\ta = 0;\n       |  \treturn a;" in text
    assert " ##### | +\tdone();" in text
    assert "     2   selftests/test_f.py::test[9]" in text
    page = covered.as_html(what, annotated)
    assert '<span class="missed" title="no case ran it">+\tdone();</span>' in page
    assert '<span class="ran" title="selftests/test_f.py::test[1]">+\tif (a &gt; 3)</span>' in page
    assert "patch 1: 2 of 2 lines with code ran" in page


def test_counters_of_another_build_are_refused(counted: tuple[Series, Repository, Path]) -> None:
    _, _, out = counted
    data = bytearray((out / "net/core/9.gcda").read_bytes())
    data[8:12] = b"\0\0\0\0"  # the stamp that notes and counters share
    (out / "net/core/9.gcda").write_bytes(data)
    with pytest.raises(Infra, match="mismatch"):
        read(counted, "9")


def test_an_image_without_notes(tmp_path: Path) -> None:
    with pytest.raises(Infra, match="no notes"):
        Counters(tmp_path, {}, "gcov")


def test_only_objects_that_count_have_notes_worth_keeping(counted: tuple[Series, Repository, Path]) -> None:
    out = counted[2]
    assert [path.name for path in gcov.notes(out)] == ["grant.gcno"]
    (out / "net/core/grant.o").write_bytes(b"compiled again, without counters")
    assert list(gcov.notes(out)) == []


def test_what_results_json_says_of_it(counted: tuple[Series, Repository, Path]) -> None:
    schema = json.loads((REPO / "docs/results.schema.json").read_text())["properties"]["coverage"]
    jsonschema.validate(read(counted, "1").as_json(), schema)


def test_the_document(counted: tuple[Series, Repository, Path], tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    assert covered.read(file) == {}
    covered.write(file, {"made": read(counted, "1")})
    assert covered.read(file)["made"] == read(counted, "1")
    assert "## made" in covered.document(covered.read(file))
    file.write_text("[{}]")
    with pytest.raises(Mistake, match="writes it anew"):
        covered.read(file)
