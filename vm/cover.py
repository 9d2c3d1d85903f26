"""The command `perpatch cover`: runs the cases on a kernel that counts its lines, and says which added lines ran."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from vm import arch, covered, flavour, gcov, output, series, source
from vm.cases import Case, groups
from vm.commits import Repository
from vm.covered import Covered, Line
from vm.errors import Mistake
from vm.gcov import Counters, Place
from vm.guest import selftests_tar
from vm.image import Builder
from vm.kernel import Runs, assemble, place
from vm.matrix import Run
from vm.options import BaseOption, SchedulerOption, SeriesOption, TarballOption, TreeOption
from vm.paths import REPO, writable
from vm.plugin import DEFAULT_SERIES, collect
from vm.progress import Progress
from vm.reports import Cell, given
from vm.run import Options, prepare
from vm.series import Patch, Series
from vm.single import every_30_s
from vm.subject import step_subject

JSON, MARKDOWN = REPO / "docs/coverage.json", REPO / "docs/coverage.md"


def cover(
    context: typer.Context,
    series_word: SeriesOption = DEFAULT_SERIES,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="guests at a time")] = os.cpu_count() or 1,
    scheduler: SchedulerOption = None,
    results: Annotated[Path | None, typer.Option(help="where to write (default: results/<time>-cover)")] = None,
    keep: Annotated[bool, typer.Option("--docs", help="keep the table in docs/, as JSON and Markdown")] = False,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Say which of the lines that each patch adds the cases run, and which case first. Other words go to pytest."""
    under_test = series.load(series_word)
    if keep and not under_test.declared:
        raise Mistake(f"--docs: keeps a series of this project: {series_word} has no series.toml")
    known = covered.reasons(under_test)
    cases = collect(series_word, context.args)
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-cover"
    found = source.find(under_test.base, tree, base, tarball, typer.echo)
    run = prepare(under_test, cases, [len(under_test.patches)], Options())
    run.source, run.flavour = found, gcov.FLAVOUR
    with tempfile.TemporaryDirectory() as scratch, place(scheduler, jobs) as (guests, at_once):
        repository = Repository(Path(scratch), found, under_test)
        counting = replace(under_test, patches=(*under_test.patches, gcov.patch(repository)))
        kind, last = flavour.load(gcov.FLAVOUR), len(counting.patches)
        writable(into)
        builder = Builder(found, flavour.build_as(counting, kind), arch.load(), into)
        run.steps[0].image = image = builder.image(last, every_30_s(typer.echo))
        kernel = assemble(image, step_subject(under_test, last - 1), flavour=kind)
        run.accel, run.accel_why = kernel.accel.name, kernel.accel.why
        stopping = threading.Event()
        sent = _run(run, guests(kernel, into, stopping), flavour.patient(cases, kind), at_once, stopping)
        typer.echo("reading the counters")
        added = {file: repository.added(file) for file in repository.touched(found.commit, repository.commits[-1])}
        counters = Counters(image.notes, {file: set(lines) for file, lines in added.items()}, _tool())
        what = judge(
            under_test, found.label, cases, sent, counters, lines_of(repository, added, counters.places), known
        )
        annotated = covered.annotate(what, repository)
    run.coverage = what.as_json()
    output.write(run, into)
    (into / "coverage.md").write_text(covered.table(what))
    (into / "coverage.txt").write_text(covered.as_text(annotated))
    (into / "coverage.html").write_text(covered.as_html(what, annotated))
    typer.echo(covered.table(what))
    typer.echo(f"{output.summary(run)}\nresults: {into}")
    if gone := covered.stale(what, known):
        typer.echo(f"unreached.toml: not so any more: {'; '.join(gone)}")
    if keep and not run.interrupted:
        covered.write(JSON, covered.read(JSON) | {under_test.name: what})
        MARKDOWN.write_text(covered.document(covered.read(JSON)))
    status = run.exit_status()
    raise typer.Exit(status if status > 1 else 0 if what.good() and not gone else 1)


def _tool() -> str:
    return f"{arch.load().cross_compile}gcov"


def _run(
    run: Run, runs: Runs, cases: list[Case], at_once: int, stopping: threading.Event
) -> dict[str, list[dict[str, str]]]:
    """Run the cases, and what each sent of its counters; what has arrived is kept where the user stops it."""
    began, one_at_a_time = time.monotonic(), threading.Lock()
    sent: dict[str, list[dict[str, str]]] = {}
    with Progress(run, sys.stdout) as progress, ThreadPoolExecutor(at_once) as pool:
        tar = selftests_tar()

        def take(cell: Cell) -> None:
            with one_at_a_time:
                sent[cell.case] = given(cell.reports, "coverage")
                run.add(replace(cell, reports=()))
                progress.cell(cell)

        def work(group: list[Case]) -> None:
            for cell in runs.run(group, tar):
                take(cell)

        futures = [pool.submit(work, group) for group in groups(cases)]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            run.interrupted = True
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    run.seconds = time.monotonic() - began
    run.close()
    return sent


def lines_of(repository: Repository, added: dict[str, dict[int, tuple[Patch, int]]], places: set[Place]) -> list[Line]:
    """The added lines that hold code, in the order of the files."""
    found = []
    for file in sorted({file for file, _ in places}):
        text = repository.text(file).decode(errors="replace").splitlines()
        found += [
            Line(file, n, patch.id, text[n - 1].strip()) for n, (patch, _) in added[file].items() if (file, n) in places
        ]
    return found


def judge(
    under_test: Series,
    label: str,
    cases: list[Case],
    sent: dict[str, list[dict[str, str]]],
    counters: Counters,
    lines: list[Line],
    known: dict[tuple[str, str], str],
) -> Covered:
    """Which case ran which line first, in the order in which the cases were collected."""
    left, first = {(line.file, line.line) for line in lines}, dict[Place, str]()
    for case in cases:
        for counts in sent.get(case.nodeid, []):
            ran = counters.ran(counts, left)
            first |= dict.fromkeys(ran, case.nodeid)
            left -= ran
    judged = tuple(
        replace(line, first=first[at])
        if (at := (line.file, line.line)) in first
        else replace(line, why=known.get((line.file, line.text), ""))
        for line in lines
    )
    patches = tuple((patch.id, patch.title) for patch in under_test.patches)
    return Covered(under_test.name, label, patches, sum(bool(counts) for counts in sent.values()), judged)
