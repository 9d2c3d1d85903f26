"""Where the base kernel comes from: a user's git tree, the cache, the distribution's package, a tarball.

Whatever it is, the result is a git repository whose objects a private clone borrows (see tree.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from vm import apt, git
from vm.errors import Mistake
from vm.paths import cache, locked

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A base: the repository that holds it, its commit and tree ids, and how it is called (v5.10.262)."""

    repo: str
    commit: str
    tree: str
    label: str


def find(base: str, tree: str | None, rev: str | None, tarball: str | None, say: Say) -> Source:
    """The base of a series on kernel version `base` ("5.10"). Mistake says what was tried and how to give a tree.

    In order: tree/PERPATCH_TREE at rev; the cache; linux-source-`base` through apt; a tarball (path or URL) that
    is written PATH#SHA256, or PERPATCH_TARBALL.
    """
    tree = tree or os.environ.get("PERPATCH_TREE") or None
    if tree:
        return _of_user(Path(tree).expanduser(), rev or "HEAD")
    if rev:
        raise Mistake(f"--base {rev}: needs the git tree that has it: give --tree PATH")
    tarball = tarball or os.environ.get("PERPATCH_TARBALL") or None
    if tarball:
        return _of_tarball(tarball, say)
    if not base:
        raise Mistake("this series does not say which kernel it applies to: give --tree PATH --base REV")
    store = cache() / "sources"
    for record in sorted(store.glob(f"linux-source-{base}_*/source.json"), reverse=True):
        source = Source(**json.loads(record.read_text()))
        if Path(source.repo).is_dir():
            return source
    try:
        deb = apt.fetch(f"linux-source-{base}", store / "debs", say)
    except apt.Unavailable as e:
        raise Mistake(
            f"linux {base}: no source found: tried PERPATCH_TREE (not set), {store} (nothing there), "
            f"apt ({e}): give --tree PATH (a git tree) or --tarball PATH#SHA256"
        ) from None
    try:
        return _of_deb(base, deb, store, say)
    finally:
        deb.unlink(missing_ok=True)


def _of_user(path: Path, rev: str) -> Source:
    if not (path / ".git").exists() and not (path / "objects").is_dir():
        raise Mistake(f"--tree {path}: not a git repository: give the top of a kernel clone")
    try:
        commit = git.read(path, "rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")
        top = git.read(path, "show", f"{commit}:Makefile")
    except git.Failed:
        raise Mistake(f"--tree {path} --base {rev}: no such revision of a kernel in it") from None
    return Source(str(path.resolve()), commit, git.read(path, "rev-parse", f"{commit}^{{tree}}"), _version(top))


def _version(makefile: str) -> str:
    part: dict[str, str] = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) *= *(.*)$", makefile, re.M))
    sub = part.get("SUBLEVEL", "").strip()
    dotted = f"v{part.get('VERSION', '?').strip()}.{part.get('PATCHLEVEL', '?').strip()}"
    return dotted + (f".{sub}" if sub not in ("", "0") else "") + part.get("EXTRAVERSION", "").strip()


def _of_deb(base: str, deb: Path, store: Path, say: Say) -> Source:
    version = deb.name.split("_")[1]
    with tempfile.TemporaryDirectory(dir=store) as scratch:
        say(f"source: unpacking {deb.name}")
        subprocess.run(["dpkg-deb", "-x", str(deb), scratch], check=True, stdin=subprocess.DEVNULL)
        tarball = next(Path(scratch).glob("usr/src/linux-source-*.tar.*"))
        return _import(tarball, f"linux-source-{base}_{version}", store, say)


def _of_tarball(given: str, say: Say) -> Source:
    where, _, digest = given.partition("#")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise Mistake(f"--tarball {given}: no sha256: write PATH#SHA256 (sha256sum PATH prints it)")
    store = cache() / "sources"
    record = store / f"tarball_{digest}" / "source.json"
    if record.is_file():
        return Source(**json.loads(record.read_text()))
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as scratch:
        file = Path(where).expanduser()
        if re.match(r"https?://", where):
            import requests  # only here: 0.2 s that a run from the cache need not pay

            say(f"source: fetching {where}")
            file = Path(scratch) / "linux.tar"
            with requests.get(where, stream=True, timeout=60) as reply, file.open("wb") as out:
                reply.raise_for_status()
                shutil.copyfileobj(reply.raw, out)
        if not file.is_file():
            raise Mistake(f"--tarball {where}: no such file")
        with file.open("rb") as f:
            got = hashlib.file_digest(f, "sha256").hexdigest()
        if got != digest:
            raise Mistake(f"--tarball {where}: its sha256 is {got}, not {digest}")
        return _import(file, f"tarball_{digest}", store, say)


def _import(tarball: Path, name: str, store: Path, say: Say) -> Source:
    """Make a bare repository with one commit out of a tarball; nothing is left behind where that fails."""
    final = store / name
    with locked(store / f"{name}.lock"), tempfile.TemporaryDirectory(dir=store) as scratch:
        if (final / "source.json").is_file():
            return Source(**json.loads((final / "source.json").read_text()))
        top, repo = Path(scratch) / "tree", Path(scratch) / name
        top.mkdir()
        say("source: extracting the tarball")
        subprocess.run(
            ["tar", "-xf", str(tarball), "-C", str(top), "--strip-components=1"], check=True, stdin=subprocess.DEVNULL
        )
        say("source: importing it into git")
        git.run(store, "init", "--quiet", "--bare", str(repo))
        within = ("--git-dir", str(repo), "--work-tree", str(top))
        git.run(top, *within, "add", "--all", "--force", ".")
        label = _version((top / "Makefile").read_text())
        git.run(top, *within, "commit", "--quiet", "-m", f"Linux {label}")
        commit = git.read(repo, "rev-parse", "HEAD")
        source = Source(str(final), commit, git.read(repo, "rev-parse", "HEAD^{tree}"), label)
        (repo / "source.json").write_text(json.dumps(asdict(source)))
        shutil.rmtree(final, ignore_errors=True)
        repo.rename(final)
        return source
