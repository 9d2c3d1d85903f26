"""Stage 1: a patch series, read into frozen dataclasses. No I/O after load()."""

from __future__ import annotations

import mailbox
import re
import tempfile
import tomllib
from dataclasses import dataclass
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

from vm.errors import Mistake
from vm.issues import Issue
from vm.issues import load as load_issues
from vm.paths import PATCHES

_PREFIX = re.compile(r"^\s*(?:re:\s*)?\[(?P<tags>[^\]]*PATCH[^\]]*)\]\s*", re.I)
_NUMBER = re.compile(r"(\d+)/(\d+)")
_DIFF = re.compile(rb"^(?:diff --git |--- (?:a/|/dev/null))", re.M)
_VERSION = re.compile(r"\bv(\d+)\b", re.I)


@dataclass(frozen=True)
class Patch:
    """One patch: its id (the word that cases name), its title, and the mail as `git am` takes it."""

    id: str
    title: str
    mail: bytes


@dataclass(frozen=True)
class Series:
    """A series: step 0 is the base, step k is the tree after patch k.

    base: what the series was written on, as a kernel version ("5.10") or "" where nothing says.
    fragment: Kconfig lines that the series asks for beyond the guest's own.
    declared: whether a series.toml names the patches; cases can be tied to a declared series only.
    merged_in: the version that has it upstream. issues: what released kernels that have it are known to do wrong.
    flavour: the debug flavour that the fragment asks for (see flavour.py).
    """

    name: str
    title: str
    patches: tuple[Patch, ...]
    base: str = ""
    fragment: str = ""
    cover_letter: str = ""
    merged_in: str = ""
    declared: bool = False
    issues: tuple[Issue, ...] = ()
    flavour: str = ""

    @property
    def steps(self) -> range:
        """Every step: 0 (base) to the number of patches."""
        return range(len(self.patches) + 1)

    def step_name(self, step: int) -> str:
        """How a step is called in the matrix: base, 1/3, 2/3, 3/3."""
        return f"{step}/{len(self.patches)}" if step else "base"

    def step_of(self, patch_id: str) -> int:
        """The step from which patch_id is in the tree; Mistake if the series has no such patch."""
        for k, patch in enumerate(self.patches, 1):
            if patch.id == patch_id:
                return k
        raise Mistake(f"{self.name}: no patch {patch_id!r}: its patches are {', '.join(p.id for p in self.patches)}")

    def step(self, word: str) -> int:
        """A step as a user writes it: base, a number, 2/3, or a patch's id; Mistake lists the known ones."""
        names = {"base": 0} | {p.id: k for k, p in enumerate(self.patches, 1)}
        names |= {str(k): k for k in self.steps} | {self.step_name(k): k for k in self.steps}
        if word not in names:
            known = ["base", *(f"{k} ({p.id})" for k, p in enumerate(self.patches, 1))]
            raise Mistake(f"{self.name}: no step {word!r}: its steps are {', '.join(known)}")
        return names[word]


def known() -> list[str]:
    """Names of the series under patches/ (those with a series.toml)."""
    return sorted(p.parent.name for p in PATCHES.glob("*/series.toml"))


def load(what: str) -> Series:
    """Read a series: a name under patches/, a directory of patches, or an mbox. Mistake where there is none."""
    path = PATCHES / what if re.fullmatch(r"[\w.-]+", what) and (PATCHES / what).is_dir() else Path(what).expanduser()
    if path.is_dir():
        return _from_directory(path.resolve())
    if path.is_file():
        mails = _split_mbox(path)
        return _from_mails(path.stem, mails, str(path))
    raise Mistake(
        f"series {what}: not found: neither a name under patches/ ({', '.join(known()) or 'none'}), "
        "nor a directory of patches, nor an mbox"
    )


def _from_directory(path: Path) -> Series:
    if (path / "series.toml").is_file():
        return _declared(path)
    files = sorted(p for p in path.iterdir() if p.suffix in (".patch", ".mbox", ".eml") and p.is_file())
    if not files:
        raise Mistake(f"series {path}: no *.patch in it: make them with 'git format-patch -o {path} BASE..'")
    return _from_mails(path.name, [(f.name, f.read_bytes()) for f in files], str(path))


def _declared(path: Path) -> Series:
    where = path / "series.toml"
    try:
        toml = tomllib.loads(where.read_text())
        _check(where, toml)
        patches = tuple(_declared_patch(path, row) for row in toml["patch"])
        fragment = path / "config"
        return Series(
            name=path.name,
            title=toml["title"],
            patches=patches,
            base=toml["base"],
            fragment=fragment.read_text() if fragment.is_file() else "",
            cover_letter=toml.get("cover_letter", ""),
            merged_in=toml.get("merged_in", ""),
            declared=True,
            issues=load_issues(path),
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise Mistake(f"{where}: not TOML: {e}") from None
    except KeyError as e:
        raise Mistake(
            f"{where}: no {e.args[0]!r}: it needs title, base and a [[patch]] with id, file, title each"
        ) from None


def _check(where: Path, toml: dict[str, Any]) -> None:
    rows = toml["patch"]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Mistake(f"{where}: patch: not a list of tables: write [[patch]] before each")
    ids = [row["id"] for row in rows]
    for word in ids:
        if not isinstance(word, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", word) or word == "base":
            raise Mistake(f"{where}: patch id {word!r}: not a word of its own, as cases name it")
    if len(set(ids)) != len(ids):
        raise Mistake(f"{where}: two patches have one id: {', '.join(ids)}")
    if not all(isinstance(toml[key], str) for key in ("title", "base")):
        raise Mistake(f'{where}: title and base are strings: base = "5.10"')


def _declared_patch(path: Path, row: dict[str, Any]) -> Patch:
    file = path / row["file"]
    if file.parent != path or not file.is_file():
        raise Mistake(f"{path / 'series.toml'}: patch {row['id']}: no file {row['file']!r} beside it")
    return Patch(id=row["id"], title=row["title"], mail=file.read_bytes())


def _split_mbox(path: Path) -> list[tuple[str, bytes]]:
    with tempfile.NamedTemporaryFile(suffix=".mbox") as copy:  # mailbox may lock and touch: give it a copy
        copy.write(path.read_bytes())
        copy.flush()
        box = mailbox.mbox(copy.name, create=False)
        mails = [(f"{path.name} message {n}", m.as_bytes()) for n, m in enumerate(box, 1)]
        box.close()
    if not mails:
        raise Mistake(f"series {path}: no message in it: an mbox starts each with a line 'From '")
    return mails


@dataclass(frozen=True)
class _Mail:
    label: str
    data: bytes
    title: str
    number: int | None
    total: int | None
    version: int


def _parse(label: str, data: bytes) -> _Mail | None:
    """One mail, or None where it is no patch (a cover letter, a reply, a review)."""
    subject = str(message_from_bytes(data, policy=policy.default)["subject"] or "").replace("\n", "")
    tags = _PREFIX.match(subject)
    number = _NUMBER.search(tags["tags"]) if tags else None
    cover = number is not None and int(number[1]) == 0
    if cover or not _has_diff(data) or subject.lower().startswith("re:"):
        return None
    title = " ".join((subject[tags.end() :] if tags else subject).split())
    version = _VERSION.search(tags["tags"]) if tags else None
    return _Mail(
        label,
        data,
        title or label,
        int(number[1]) if number else None,
        int(number[2]) if number else None,
        int(version[1]) if version else 1,
    )


def _has_diff(data: bytes) -> bool:
    """Whether a mail carries a patch, whatever its transfer encoding."""
    parts = message_from_bytes(data, policy=policy.default).walk()
    bodies = [part.get_payload(decode=True) for part in parts if not part.is_multipart()]
    return any(isinstance(b, bytes) and _DIFF.search(b) for b in bodies)


def _from_mails(name: str, mails: list[tuple[str, bytes]], where: str) -> Series:
    parsed = [m for m in (_parse(label, data) for label, data in mails) if m]
    lost = {label for label, _ in mails if label.endswith(".patch") and "cover-letter" not in label}
    lost -= {m.label for m in parsed}
    if lost:
        raise Mistake(f"series {where}: {', '.join(sorted(lost))}: no diff in it: is it a patch?")
    if not parsed:
        raise Mistake(f"series {where}: no patch in it: none of its {len(mails)} messages carries a diff")
    versions = sorted({m.version for m in parsed})
    if len(versions) > 1:
        raise Mistake(f"series {where}: versions {', '.join(f'v{v}' for v in versions)} mixed: keep the mails of one")
    if all(m.number for m in parsed):
        parsed.sort(key=lambda m: m.number or 0)
        numbers, total = [m.number for m in parsed], parsed[0].total
        if numbers != list(range(1, (total or 0) + 1)):
            have = ", ".join(f"{m.number}/{m.total}" for m in parsed)
            raise Mistake(f"series {where}: incomplete or doubled: it has {have}: get the missing mails")
    patches: list[Patch] = []
    for mail in parsed:
        patches.append(Patch(_slug(mail.title, {p.id for p in patches}), mail.title, mail.data))
    return Series(name=_slug(name, set()), title=patches[0].title, patches=tuple(patches))


def _slug(title: str, taken: set[str]) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "patch"
    n, unique = 1, slug
    while unique in taken:
        n += 1
        unique = f"{slug}-{n}"
    return unique
