"""Which lines of a series run: a kernel that counts them (CONFIG_GCOV_KERNEL), and what its counters say.

Only the files that hold code of the series are counted: those that it touches, and for its headers those that use what
it changed there (Documentation/dev-tools/gcov.rst).
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vm import csource
from vm.commits import Repository
from vm.errors import Infra, Mistake
from vm.series import Patch

FLAVOUR = "gcov"
Place = tuple[str, int]  # file, line at the last step

_NEVER = re.compile(r"^GCOV_PROFILE\s*:?=\s*n", re.M)
_NO_KERNEL = ("tools/", "scripts/", "samples/", "Documentation/")


def patch(repository: Repository) -> Patch:
    """One more patch, of Makefiles only: have these files count. Mistake where the series adds no code."""
    counted = defaultdict(set)
    for file in files(repository):
        if makefile := _makefile(repository, file):
            counted[makefile].add(f"GCOV_PROFILE_{PurePosixPath(file).stem}.o := y")
    if not counted:
        raise Mistake(f"{repository.series.name}: cover: its patches touch no C file that is built here")
    for makefile, lines in counted.items():
        repository.put(makefile, repository.text(makefile) + "\n".join(["", *sorted(lines), ""]).encode())
    return Patch(FLAVOUR, "lines are counted", repository.mail("perpatch: count the lines that run"))


def files(repository: Repository) -> list[str]:
    """The C files that hold code of the series: those it touches, and those that use what it changed in headers."""
    touched = repository.touched(repository.commits[0], repository.commits[-1])
    names = set[str]()
    for header in (file for file in touched if file.endswith(".h")):
        names |= csource.functions(repository.text(header), set(repository.added(header)))
    while names:  # what a header's function uses is compiled where that function is used
        more = set(names)
        for header in repository.holding(names, "*.h"):
            more |= csource.using(repository.text(header), names)
        if more == names:
            break
        names = more
    users = repository.holding(names, "*.c") if names else []
    every = {file for file in touched if file.endswith(".c")} | set(repository.ours(users))
    return sorted(file for file in every if not file.startswith(_NO_KERNEL))


def _makefile(repository: Repository, file: str) -> str:
    """The Makefile that builds a file; "" where its directory must not be counted (code without the kernel around)."""
    for where in PurePosixPath(file).parents:
        for name in ("Kbuild", "Makefile"):
            if repository.has(found := str(where / name)):
                return "" if _NEVER.search(repository.text(found).decode()) else found
    return ""


def notes(out: Path) -> Iterator[Path]:
    """What the compiler noted of the files that count, in a build directory; some may have counted in the last one."""
    for path in sorted(out.rglob("*.gcno")):
        object_ = path.with_suffix(".o")
        if object_.is_file() and b".gcda" in object_.read_bytes():
            yield path


class Counters:
    """Reads counters with the notes of one image. wanted: the lines that are looked for, by file."""

    def __init__(self, notes: Path, wanted: dict[str, set[int]], tool: str) -> None:
        """Infra where there are no notes, or no gcov to read them."""
        self.notes, self.tool = notes, tool
        self.wanted = wanted
        found = {str(path.relative_to(notes).with_suffix("")): path for path in sorted(notes.rglob("*.gcno"))}
        if not found:
            raise Infra(f"{notes}: no notes of the compiler: 'perpatch clean' makes room for a whole image")
        self.code = {name: lines for name in found if (lines := {place for place, _ in self._read(name)})}

    @property
    def places(self) -> set[Place]:
        """Every wanted line that holds code in some object."""
        return set[Place]().union(*self.code.values())

    def ran(self, sent: dict[str, str], among: set[Place]) -> set[Place]:
        """Which of these lines ran, by what a guest sent (see selftests/lib/coverage.py)."""
        found = set[Place]()
        for path, packed in sent.items():
            name = self._object(path)
            if name and self.code[name] & (among - found):
                data = zlib.decompress(base64.b64decode(packed))
                found |= {place for place, count in self._read(name, data) if count and place in among}
        return found

    def _object(self, path: str) -> str:
        name = path.removesuffix(".gcda")
        return next((known for known in self.code if name == known or name.endswith(f"/{known}")), "")

    def _read(self, name: str, data: bytes = b"") -> Iterator[tuple[Place, int]]:
        """Wanted lines of an object and how often they ran; without data, which of them there are."""
        stem = PurePosixPath(name).name
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(self.notes / f"{name}.gcno", scratch)
            if data:
                Path(scratch, f"{stem}.gcda").write_bytes(data)
            command = [self.tool, "--json-format", "--stdout", f"{stem}.gcno"]
            try:
                done = subprocess.run(command, cwd=scratch, capture_output=True, stdin=subprocess.DEVNULL)
            except FileNotFoundError:
                raise Infra(f"{self.tool}: not installed: it comes with gcc") from None
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode or "mismatch" in said:
            raise Infra(f"{self.tool}: {name}: {said or f'status {done.returncode}'}")
        for source in json.loads(done.stdout)["files"]:
            file = self._file(source["file"])
            for line in source["lines"] if file else ():
                if line["line_number"] in self.wanted[file]:
                    yield (file, line["line_number"]), line["count"]

    def _file(self, path: str) -> str:
        return next((known for known in self.wanted if path == known or path.endswith(f"/{known}")), "")
