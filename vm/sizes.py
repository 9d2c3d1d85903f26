"""What a series costs in bytes: structs as pahole sees them, and the functions of vmlinux, step by step."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import typer

from vm import arch, series, source
from vm.arch import Arch
from vm.errors import Infra
from vm.image import Builder, Image
from vm.options import BaseOption, SeriesOption, TarballOption, TreeOption
from vm.paths import cache
from vm.plugin import DEFAULT_SERIES
from vm.series import Series
from vm.source import Source

STRUCTS = ("sock", "tcp_sock")
OBJECT = "net/ipv4/tcp.o"  # knows both
SHOWN = 12  # functions a patch

_SIZE = re.compile(r"/\* size: (\d+),")
_HOLES = re.compile(r"/\* sum members: \d+, holes: (\d+), sum holes: (\d+) \*/")


@dataclass(frozen=True)
class Layout:
    """A struct: its size, how many holes it has, and the bytes in them."""

    size: int
    holes: int
    hole_bytes: int


@dataclass(frozen=True)
class Sizes:
    """One step. structs: by name, empty where pahole is not installed. text: bytes of each function in vmlinux.

    Functions of one name (static ones of several files) are added up.
    """

    step: str
    structs: dict[str, Layout]
    text: dict[str, int]


def measure(
    found: Source, under_test: Series, data: Arch, logs: Path, steps: list[int], say: Callable[[str], None]
) -> list[Sizes]:
    """Sizes of each step; StepFailed where one cannot be built. Infra without nm (binutils)."""
    builder = Builder(found, under_test, data, logs)
    # In a directory of its own, since -g there would have all of the next image compiled anew.
    described = Builder(found, replace(under_test, flavour="sizes"), data, logs)
    pahole = shutil.which("pahole")
    if not pahole:
        say("structs: not measured: pahole is not installed: apt-get install dwarves")
    measured = []
    for k in steps:
        say(f"{under_test.step_name(k)}: building")
        image = builder.image(k)
        object_ = described.object(k, OBJECT, "KCFLAGS=-g") if pahole else None
        structs = {name: layout(object_, name) for name in STRUCTS} if object_ else {}
        measured.append(Sizes(under_test.step_name(k), structs, functions(image)))
    return measured


def layout(object_: Path, struct: str) -> Layout:
    """What pahole says of a struct in an object file with debug info; Infra if it does not find it there."""
    done = subprocess.run(["pahole", "-C", struct, str(object_)], capture_output=True, text=True)
    size, holes = _SIZE.search(done.stdout), _HOLES.search(done.stdout)
    if not size:
        raise Infra(f"pahole: no struct {struct} in {object_}: {done.stderr.strip() or 'no debug info'}")
    return Layout(int(size[1]), *((int(holes[1]), int(holes[2])) if holes else (0, 0)))


def functions(image: Image) -> dict[str, int]:
    """Bytes of every function in an image's vmlinux."""
    try:
        done = subprocess.run(["nm", "-S", f"{image.dir}/vmlinux"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as e:
        raise Infra(f"nm: {image.dir}/vmlinux: {e}: apt-get install binutils") from None
    bytes_ = Counter[str]()
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tTwW":
            # A clone that the compiler made is part of what it is a clone of.
            bytes_[re.sub(r"\.(constprop|isra|part|cold)(\.\d+)?", "", words[3])] += int(words[1], 16)
    return dict(bytes_)


def growth(before: Sizes, after: Sizes) -> dict[str, int]:
    """Functions that differ in size, and by how many bytes, the biggest growth first."""
    names = before.text.keys() | after.text.keys()
    changed = {n: after.text.get(n, 0) - before.text.get(n, 0) for n in names}
    return dict(sorted(((n, d) for n, d in changed.items() if d), key=lambda nd: (-nd[1], nd[0])))


def table(sizes: list[Sizes]) -> str:
    """Text: a row a step with its structs and functions, then which functions each patch changed, and by how much."""
    lines = [f"{'step':8}" + "".join(f"{f'struct {s}':>16} {'holes':>12}" for s in STRUCTS) + f"{'functions':>14}"]
    for step in sizes:
        row = [_words(step.structs.get(name)) for name in STRUCTS]
        lines.append(f"{step.step:8}" + "".join(row) + f"{sum(step.text.values()):14,}")
    for before, after in pairwise(sizes):
        changed = growth(before, after)
        grown, shrunk = (sum(d for d in changed.values() if (d > 0) is up) for up in (True, False))
        lines += ["", f"{before.step} to {after.step}: {grown:+,} {shrunk:+,}: {grown + shrunk:+,} bytes of functions"]
        # Those that changed most; the rest in one line.
        most = sorted(changed.items(), key=lambda nd: -abs(nd[1]))[:SHOWN]
        lines += [f"  {delta:+6,}  {name}" for name, delta in most]
        if rest := len(changed) - len(most):
            lines.append(f"  {grown + shrunk - sum(d for _, d in most):+6,}  {rest} more")
    return "\n".join(lines)


def _words(layout: Layout | None) -> str:
    return f"{layout.size:16,} {f'{layout.holes} ({layout.hole_bytes} B)':>12}" if layout else f"{'not measured':>29}"


def sizes(
    series_word: SeriesOption = DEFAULT_SERIES,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Print what each patch adds in bytes: struct sock and tcp_sock with their holes, and the kernel's functions."""
    under_test = series.load(series_word)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    found = source.find(under_test.base, tree, base, tarball, say)
    logs = cache() / "logs" / under_test.name
    typer.echo(table(measure(found, under_test, arch.load(), logs, list(under_test.steps), say)))
