"""Faults made by rules: where the rules find a place, and what they make of it."""

from pathlib import Path

import pytest

from vm import csource, derive, git, mutants
from vm.errors import Mistake
from vm.series import Patch, Series
from vm.source import Source

HEAD = b"#include <linux/types.h>\n\n"
CODE = """\
static int grant(struct sock *sk, int size)
{
	int pages[8], left = 0;

	if (likely(sk->a) || !(sk->b && size > LIMIT))
		return -EINVAL;
	switch (size) {
	case 3:
		call(sk, sizeof(pages) / 2);
		break;
	}
	BUILD_BUG_ON(LIMIT > 7);
	left += sk->more ? 1 : 0x10;
	for_each_one(sk)
		sk->count++;
	return left;
}
"""


def found(code: str, *lines: int) -> list[tuple[str, str]]:
    text = code.encode()
    every = set(range(1, code.count("\n") + 1))
    return [(place.kind, place.text) for place in csource.places(text, set(lines) or every)]


def test_conditions_statements_and_constants() -> None:
    negated = [text for kind, text in found(CODE) if kind == "negate"]
    assert negated == [
        "likely(sk->a) || !(sk->b && size > LIMIT)",
        "likely(sk->a)",
        "!(sk->b && size > LIMIT)",
        "sk->b",
        "size > LIMIT",
        "sk->more",
    ]
    dropped = [text for kind, text in found(CODE) if kind == "drop"]
    assert "return -EINVAL;" in dropped and "break;" in dropped and "call(sk, sizeof(pages) / 2);" in dropped
    assert "return left;" not in dropped, "a function has to end with its value"
    shifted = [text for kind, text in found(CODE) if kind == "shift"]
    assert shifted == ["0", "LIMIT", "EINVAL", "2", "1", "0x10"], "no label, no size, nothing for the compiler"


def test_only_what_begins_on_a_line_that_was_added() -> None:
    assert found(CODE, 6) == [("drop", "return -EINVAL;"), ("shift", "EINVAL")]
    assert found("#define LIMIT 7\nint wide = 7;\n") == []


def test_what_is_true_becomes_false() -> None:
    text = b"bool f(void)\n{\n\treturn true;\n}\n"
    (place,) = csource.places(text, {3})
    assert (place.around, place.wrong) == (("(@ != ", ")"), "false")


def test_choices_nest() -> None:
    text = b"int f(int a)\n{\n\tif (LIMIT)\n\t\ta = 0;\n\treturn a;\n}\n"
    chosen = [(f"m{n}", place) for n, place in enumerate(csource.places(text, set(range(1, 7))))]
    changed = derive._changed(text, chosen).decode()
    assert "if ((MUTANT(m1) != !!((LIMIT + MUTANT(m2))))" in changed or (
        "if ((MUTANT(m0) != !!((LIMIT + MUTANT(m1)))))" in changed
    )
    assert "{ if (!MUTANT(m2)) a = (0 + MUTANT(m3)); }" in changed
    assert changed.count("(") == changed.count(")")


def made(tmp_path: Path, *states: str) -> tuple[Series, Source]:
    """A series whose patches lead from state to state of net/core/grant.c, and the repository of its base."""
    repo = tmp_path / "linux"
    (repo / "net/core").mkdir(parents=True)
    (repo / "net/core/Makefile").write_text("obj-y := grant.o\n")
    git.run(repo, "init", "-q")
    mails = []
    for n, state in enumerate(states):
        (repo / "net/core/grant.c").write_text(HEAD.decode() + state)
        git.run(repo, "add", ".")
        git.run(repo, "commit", "-q", "-m", f"state {n}")
        if n:
            mails.append(git.run(repo, "format-patch", "-1", "--stdout").encode())
    base = git.read(repo, "rev-parse", f"HEAD~{len(mails)}")
    patches = tuple(Patch(f"p{k}", f"patch {k}", mail) for k, mail in enumerate(mails, 1))
    tree = git.read(repo, "rev-parse", f"{base}^{{tree}}")
    return Series("made", "made", patches), Source(str(repo), base, tree, "v5.10")


BASE = "int f(int a)\n{\n\treturn a;\n}\n"
ONE = "int f(int a)\n{\n\tif (a > 3)\n\t\ta = 0;\n\treturn a;\n}\n"
TWO = "int g(void)\n{\n\tdone();\n\treturn 1;\n}\n\n" + ONE


def test_each_fault_belongs_to_the_patch_that_added_its_line(tmp_path: Path) -> None:
    faults = {m.id: m for m in derive.load(*made(tmp_path, BASE, ONE, TWO))}
    assert list(faults) == [
        "drop-g-1",
        "shift-g-1",
        "negate-f-1",
        "shift-f-1",
        "drop-f-1",
        "shift-f-2",
        "revert-p1-net-core-grant-c-1",
        "revert-p2-net-core-grant-c-1",
    ]
    assert faults["drop-g-1"].breaks == "p2" and faults["negate-f-1"].breaks == "p1"
    assert faults["negate-f-1"].what == "net/core/grant.c:11: f(): negated: a > 3"
    assert "-\tif (a > 3)\n+\tif (!(a > 3))" in mutants.fault(faults["negate-f-1"])
    assert "\n-\tdone();\n" in mutants.fault(faults["drop-g-1"])
    reverted = faults["revert-p1-net-core-grant-c-1"]
    assert reverted.name == "" and b"-\tif (a > 3)\n-\t\ta = 0;\n" in reverted.patch.mail


def test_the_faults_apply_and_their_names_agree(tmp_path: Path) -> None:
    under_test, source = made(tmp_path, BASE, ONE)
    faults = derive.load(under_test, source)
    git.run(tmp_path, "clone", "-q", source.repo, "work")
    mail = faults[0].patch.mail
    git.run(tmp_path / "work", "am", "-q", data=mail)
    assert mutants.names(mail.decode()) == {m.name for m in faults if m.name}
    assert (
        (tmp_path / "work/net/core/grant.c").read_text().startswith("#include <net/mutant.h>\n#include <linux/types.h>")
    )
    assert "mutant.o" in (tmp_path / "work/net/core/Makefile").read_text()


def test_a_series_without_code_has_no_faults(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="nothing to the code"):
        derive.load(*made(tmp_path, BASE, BASE + "/* a remark */\n"))


def test_a_patch_that_does_not_apply_is_named(tmp_path: Path) -> None:
    under_test, source = made(tmp_path, BASE, ONE)
    twice = Series("made", "made", under_test.patches * 2)
    with pytest.raises(Mistake, match=r"made: patch 2 does not apply on v5\.10: error: patch failed"):
        derive.load(twice, source)


def test_a_proof_is_of_the_fault_that_it_names(tmp_path: Path) -> None:
    faults = derive.load(*made(tmp_path, BASE, ONE))
    file = tmp_path / "derived.toml"
    assert derive.proven(faults, file) == faults
    row = '[[equivalent]]\nid = "shift-f-2"\nwhat = "{}"\nproof = "It does nothing."\n'
    file.write_text(row.format(derive.without_line(faults[3].what)))
    assert [m.id for m in derive.proven(faults, file) if m.equivalent] == ["shift-f-2"]
    file.write_text(row.format("net/core/grant.c: f(): one more: 7"))
    with pytest.raises(Mistake, match=r"shift-f-2 is 'net/core/grant\.c: f\(\): one more: 0' now"):
        derive.proven(faults, file)
