from pathlib import Path

import pytest

from vm import series
from vm.errors import Mistake

MAIL = """From: A Developer <dev@example.org>
Subject: [PATCH{tags}] {title}
Date: Tue, 28 Sep 2021 14:46:40 -0700

Why.
---
 f | 1 +

diff --git a/f b/f
--- a/f
+++ b/f
@@ -1 +1,2 @@
 a
+b
--
2.33.0
"""


def mail(title: str, tags: str = "") -> str:
    return MAIL.format(title=title, tags=tags)


def mbox(tmp_path: Path, *mails: str) -> Path:
    file = tmp_path / "series.mbox"
    file.write_text("".join(f"From dev@example.org Tue Sep 28 14:46:40 2021\n{m}\n" for m in mails))
    return file


def test_a_directory_without_series_toml_is_a_series_too(tmp_path: Path) -> None:
    (tmp_path / "0001-a.patch").write_text(mail("net: first thing", " 1/2"))
    (tmp_path / "0002-b.patch").write_text(mail("tcp: second thing!", " 2/2"))
    s = series.load(str(tmp_path))
    assert [p.id for p in s.patches] == ["net-first-thing", "tcp-second-thing"]
    assert not s.declared
    assert [s.step_name(k) for k in s.steps] == ["base", "1/2", "2/2"]


def test_an_mbox_is_put_in_order_and_its_cover_letter_left_out(tmp_path: Path) -> None:
    cover = mail("the letter", " v2 net-next 0/2").replace("diff --git", "nothing")
    reply = mail("one", " v2 net-next 1/2").replace("Subject: ", "Subject: Re: ")
    file = mbox(tmp_path, cover, mail("two", " v2 net-next 2/2"), reply, mail("one", " v2 net-next 1/2"))
    assert [p.title for p in series.load(str(file)).patches] == ["one", "two"]


@pytest.mark.parametrize(
    ("mails", "says"),
    [
        ([mail("a", " v1 1/2"), mail("a", " v2 1/2")], "versions v1, v2 mixed"),
        ([mail("a", " 1/3"), mail("c", " 3/3")], "incomplete or doubled: it has 1/3, 3/3"),
        ([mail("a").split("\ndiff")[0]], "none of its 1 messages carries a diff"),
    ],
)
def test_a_bad_mbox_is_one_clear_line(tmp_path: Path, mails: list[str], says: str) -> None:
    with pytest.raises(Mistake, match=says):
        series.load(str(mbox(tmp_path, *mails)))


def test_a_patch_is_never_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "0001-a.patch").write_text(mail("one").replace("diff --git a/f b/f\n", ""))
    (tmp_path / "0002-b.patch").write_text(mail("two"))
    assert len(series.load(str(tmp_path)).patches) == 2
    (tmp_path / "0003-c.patch").write_text(mail("three").split("\ndiff")[0])
    with pytest.raises(Mistake, match=r"0003-c.patch: no diff in it"):
        series.load(str(tmp_path))


def test_same_subjects_get_different_ids(tmp_path: Path) -> None:
    file = mbox(tmp_path, mail("fix", " 1/2"), mail("fix", " 2/2"))
    assert [p.id for p in series.load(str(file)).patches] == ["fix", "fix-2"]


def test_an_unknown_series_lists_the_known_ones() -> None:
    with pytest.raises(Mistake, match="so-reserve-mem"):
        series.load("no-such-series")


def test_the_steps_of_our_series_and_how_they_may_be_written() -> None:
    s = series.load("so-reserve-mem")
    assert [p.id for p in s.patches] == ["option", "sndbuf", "rcv_ssthresh"]
    assert [s.step(w) for w in ("base", "0", "1", "1/3", "sndbuf", "3")] == [0, 0, 1, 1, 2, 3]
    with pytest.raises(Mistake, match=r"no step '7': its steps are base, 1 \(option\)"):
        s.step("7")
    with pytest.raises(Mistake, match="no patch 'nope': its patches are option, sndbuf, rcv_ssthresh"):
        s.step_of("nope")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("title = ", "not TOML"),
        ('title = "t"\nbase = "5.10"\n', "no 'patch'"),
        ('title="t"\nbase="5.10"\npatch=[]\n', "write \\[\\[patch\\]\\] before each"),
        ('title="t"\nbase="5.10"\n[[patch]]\nid="base"\n', "patch id 'base'"),
        ('title="t"\nbase=5.10\n[[patch]]\nid="a"\n', "strings"),
        ('title="t"\nbase="5.10"\n[[patch]]\nid="a"\nfile="../x"\ntitle="t"\n', "no file '../x' beside it"),
    ],
)
def test_a_bad_series_toml_is_one_clear_line(tmp_path: Path, toml: str, says: str) -> None:
    (tmp_path / "series.toml").write_text(toml)
    with pytest.raises(Mistake, match=says):
        series.load(str(tmp_path))


def test_our_patches_name_nobody() -> None:
    for patch in series.load("so-reserve-mem").patches:
        assert b"Signed-off-by" not in patch.mail
        assert b"From: perpatch developers <perpatch@example.org>" in patch.mail
