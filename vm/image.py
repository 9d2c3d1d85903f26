"""Stage 3: the kernel of one step (image, vmlinux, .config) in a content-addressed cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from vm import gcov
from vm.arch import Arch
from vm.errors import Infra, StepFailed
from vm.paths import VM, cache, locked
from vm.series import Series
from vm.source import Source
from vm.tree import Tree

_WARNING = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?: warning: (?P<text>.*)$")
_STEP_LINE = re.compile(r"^\s+(?:CC|AS|LD|AR|HOSTCC|OBJCOPY|VDSO)\s+(\S+)")
NEEDS_FREE = 3 << 30  # bytes: a build directory takes about 1 GiB, a clone 1.1 GiB

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Image:
    """One kernel: dir holds kernel, config, image.json, and vmlinux where it was built here.

    warnings: every compiler warning seen up to this step, without line numbers; new_warnings: those that the step
    before did not have. seconds: wall time of the build; 0 objects means that nothing had to be compiled.
    release, version: of a kernel that was built elsewhere, as uname -r (6.1.0-50-amd64) and upstream (6.1.170) have it.
    """

    key: str
    dir: str
    sha256: str
    compiler: str
    config_sha256: str
    warnings: tuple[str, ...]
    new_warnings: tuple[str, ...]
    seconds: float
    objects: int
    release: str = ""
    version: str = ""

    @property
    def kernel(self) -> Path:
        """What QEMU boots."""
        return Path(self.dir) / "kernel"

    @property
    def initramfs(self) -> Path | None:
        """What loads the drivers that mounting our root takes; None where all of them are built in."""
        return self._beside("initramfs")

    @property
    def modules(self) -> Path | None:
        """A squashfs for /lib/modules/RELEASE; None where the kernel came without modules."""
        return self._beside("modules.squashfs")

    @property
    def notes(self) -> Path:
        """Where the compiler's notes are, of an image that counts its lines (see gcov.py)."""
        return Path(self.dir) / "gcno"

    def _beside(self, name: str) -> Path | None:
        path = Path(self.dir) / name
        return path if path.is_file() else None


def compiler(arch: Arch) -> str:
    """First line of the compiler's --version, part of every key; Infra where there is none."""
    cc = f"{arch.cross_compile}gcc"
    try:
        said = subprocess.run([cc, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except FileNotFoundError:
        raise Infra(f"no compiler: {cc} is not installed: 'perpatch doctor' says what is missing") from None
    return said.splitlines()[0]


def fragments(series: Series) -> str:
    """Kconfig lines for every step of a series: the guest's own, then the series'."""
    return (VM / "kconfig/guest.config").read_text() + "\n" + series.fragment


def key_of(source: Source, series: Series, step: int, arch: Arch, cc: str) -> str:
    """The name of an image: base tree, patches 1..k byte for byte, fragments, architecture, compiler."""
    h = hashlib.sha256()
    parts = [source.tree.encode(), *(p.mail for p in series.patches[:step])]
    for part in [*parts, fragments(series).encode(), f"{arch.name} {arch.target}".encode(), cc.encode()]:
        h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()[:24]


def cached(key: str, store: str = "images") -> Image | None:
    """The image of that key if it is in the cache and whole (its kernel's sha256 is checked)."""
    record = cache() / store / key / "image.json"
    try:
        row = json.loads(record.read_text())
        row["warnings"], row["new_warnings"] = tuple(row["warnings"]), tuple(row["new_warnings"])
        image = Image(**row | {"dir": str(record.parent)})  # a cache may be shared, and be mounted elsewhere
        whole = hashlib.sha256(image.kernel.read_bytes()).hexdigest() == image.sha256
        whole &= all((record.parent / name).is_file() for name in ("config", *(() if image.release else ("vmlinux",))))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return image if whole else None


class Builder:
    """Builds the steps of one series, in one tree and one build directory; use it as a context (it holds a lock)."""

    def __init__(self, source: Source, series: Series, arch: Arch, logs: Path) -> None:
        self.source, self.series, self.arch, self.logs = source, series, arch, logs
        self.cc = compiler(arch)
        where = hashlib.sha256(f"{source.repo} {series.name} {arch.name}".encode()).hexdigest()[:12]
        self.dir = cache() / "build" / f"{series.name}-{where}"
        self.tree = Tree(self.dir / "tree", source, series, logs)
        # A flavour compiles everything anew; in a directory of its own it does so once.
        self.out = self.dir / ("-".join(["out", series.flavour]) if series.flavour else "out")
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End a build that is under way (from another thread); it then ends as Infra, and nothing enters the cache."""
        self._stopped = True
        if self._running:
            self._running.terminate()

    def image(self, step: int, progress: Progress = lambda done, what: None) -> Image:
        """The image of a step, built if the cache lacks it. StepFailed: NO_APPLY or NO_BUILD with reason and log."""
        key = key_of(self.source, self.series, step, self.arch, self.cc)
        found = cached(key)
        if found:
            return found
        with locked(self.dir / "lock", lambda: self._stopped):
            found = cached(key)  # another run may have made it while we waited
            if found:
                return found
            progress(0, "applying patches")
            self.tree.go(step)
            try:
                return self._build(step, key, progress)
            except OSError as e:
                raise Infra(f"{self.series.name}: step {step}: {e.strerror}: {e.filename}") from e

    def object(self, step: int, name: str, *words: str) -> Path:
        """One object file of a step (net/ipv4/tcp.o), made in the build directory; words are make's. StepFailed."""
        with locked(self.dir / "lock", lambda: self._stopped):
            self.tree.go(step)
            log = self.logs / f"build-{step}-{Path(name).stem}.log"
            self._configure(step, log)
            self._make(step, log, lambda objects, what: None, name, *words)
            return self.out / name

    def _build(self, step: int, key: str, progress: Progress) -> Image:
        free = shutil.disk_usage(self.dir).free
        if free < NEEDS_FREE:
            raise Infra(
                f"{self.dir}: {free >> 20} MiB free, a build needs {NEEDS_FREE >> 20}: 'perpatch clean' makes room"
            )
        began = time.monotonic()
        log = self.logs / f"build-{step}.log"
        self._configure(step, log)
        objects, seen = self._make(step, log, progress, self.arch.target)
        before = cached(key_of(self.source, self.series, step - 1, self.arch, self.cc)) if step else None
        old = set(before.warnings) if before else set()
        dir_ = cache() / "images" / key
        dir_.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=dir_.parent) as scratch:
            half = Path(scratch) / key
            half.mkdir()
            shutil.copy(self.out / self.arch.image, half / "kernel")
            shutil.copy(self.out / "vmlinux", half / "vmlinux")
            shutil.copy(self.out / ".config", half / "config")
            for path in gcov.notes(self.out) if self.series.flavour == gcov.FLAVOUR else ():
                note = half / "gcno" / path.relative_to(self.out)
                note.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, note)
            image = Image(
                key=key,
                dir=str(dir_),
                sha256=hashlib.sha256((half / "kernel").read_bytes()).hexdigest(),
                compiler=self.cc,
                config_sha256=hashlib.sha256((half / "config").read_bytes()).hexdigest(),
                warnings=tuple(sorted(old | seen)),
                new_warnings=tuple(sorted(seen - old)) if before else (),
                seconds=round(time.monotonic() - began, 1),
                objects=objects,
            )
            (half / "image.json").write_text(json.dumps(asdict(image), indent=1))
            shutil.rmtree(dir_, ignore_errors=True)
            half.rename(dir_)
        return image

    def _command(self, *words: str) -> list[str]:
        cc = f"{self.arch.cross_compile}gcc"
        return [
            "make",
            "-C",
            str(self.tree.path),
            f"O={self.out}",
            f"ARCH={self.arch.make_arch}",
            f"CROSS_COMPILE={self.arch.cross_compile}",
            f"CC=ccache {cc}" if shutil.which("ccache") else f"CC={cc}",
            *words,
        ]

    def _environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("KBUILD_", "MAKE", "MFLAGS", "KCONFIG"))}
        fixed = {"KBUILD_BUILD_TIMESTAMP": "@0", "KBUILD_BUILD_USER": "perpatch", "KBUILD_BUILD_HOST": "perpatch"}
        # Every series has a directory of its own: paths relative to it let them share what ccache knows.
        fixed |= {"CCACHE_BASEDIR": str(self.dir), "CCACHE_NOHASHDIR": "1"}
        return keep | fixed | {"LC_ALL": "C", "KBUILD_BUILD_VERSION": "1"}

    def _configure(self, step: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        wanted = fragments(self.series)
        fragment = self.out / "fragments.config"
        fragment.write_text(wanted)
        with log.open("wb") as f:
            done = subprocess.run(
                self._command(f"KCONFIG_ALLCONFIG={fragment}", "allnoconfig"),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=f,
                stderr=f,
            )
        if done.returncode:
            raise StepFailed("NO_BUILD", f"step {step}: make allnoconfig failed: {_first_error(log)}", log)
        lost = missing(wanted, (self.out / ".config").read_text())
        if lost:
            raise StepFailed(
                "NO_BUILD",
                f"step {step}: config: {', '.join(lost)} did not survive: unmet dependencies, or no such symbol here",
                self.out / ".config",
            )

    def _make(self, step: int, log: Path, progress: Progress, *words: str) -> tuple[int, set[str]]:
        """Compile; the number of objects made and the warnings seen. The build is ended with us, whatever happens."""
        objects, seen = 0, set[str]()
        command = self._command(f"-j{os.cpu_count() or 1}", *words)
        make = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert make.stdout is not None
        self._running = make
        try:
            with log.open("a") as f:
                for line in make.stdout:
                    f.write(line)
                    made = _STEP_LINE.match(line)
                    if made:
                        objects += 1
                        progress(objects, made[1])
                    warned = _WARNING.match(line)
                    if warned:
                        seen.add(f"{self._relative(warned['file'])}: {warned['text']}")
        finally:
            make.terminate()  # nothing to end where it has ended; make ends its own jobs
            make.wait()
            self._running = None
        if self._stopped:
            raise Infra(f"step {step}: the build was stopped")
        if make.returncode:
            if "No space left on device" in log.read_text(errors="replace"):
                raise Infra(f"{self.out}: no space left on device: 'perpatch clean' makes room")
            raise StepFailed("NO_BUILD", f"step {step}: {_first_error(log)}", log)
        return objects, seen

    def _relative(self, file: str) -> str:
        for top in (f"{self.tree.path}/", "../tree/"):
            file = file.removeprefix(top)
        return file


def missing(wanted: str, config: str) -> list[str]:
    """Requested symbols whose value did not survive into a .config, as CONFIG_X=y lines (in order)."""
    have = set(config.splitlines())
    lines = [line.strip() for line in wanted.splitlines()]
    lost = [line for line in lines if re.match(r"CONFIG_\w+=[^n]", line) and line not in have]
    off = re.compile(r"(?:# )?(CONFIG_\w+)(?:=n| is not set)$")
    on = {line.split("=")[0] for line in have if line.startswith("CONFIG_")}
    lost += [line for line in lines if (m := off.match(line)) and m[1] in on]
    return lost


def _first_error(log: Path) -> str:
    tail: deque[str] = deque(maxlen=1)
    for line in log.read_text(errors="replace").splitlines():
        if re.search(r"(?:: (?:fatal )?error: |^make.*\*\*\*|undefined reference)", line):
            return line.strip()
        tail.append(line.strip())
    return tail[0] if tail else "make said nothing"
