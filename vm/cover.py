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
from vm.image import Builder, Image
from vm.kernel import MakeRuns, assemble, place
from vm.matrix import Run
from vm.options import BaseOption, SchedulerOption, SeriesOption, TarballOption, TreeOption
from vm.paths import REPO, writable
from vm.plugin import DEFAULT_SERIES, collect
from vm.progress import Progress
from vm.reports import given
from vm.run import Options, prepare
from vm.series import Patch
from vm.single import every_30_s

Sent = dict[str, list[dict[str, str]]]  # by case: what it sent of its counters
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
    if keep and (context.args or not under_test.declared):
        raise Mistake("--docs: keeps what all cases ran of a series under patches/: leave words for pytest out")
    known = covered.reasons(under_test)
    run = prepare(under_test, collect(series_word, context.args), [len(under_test.patches)], Options())
    run.source, run.flavour = source.find(under_test.base, tree, base, tarball, typer.echo), gcov.FLAVOUR
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-cover"
    with tempfile.TemporaryDirectory() as scratch, place(scheduler, jobs) as (guests, at_once):
        repository = Repository(Path(scratch), run.source, under_test)
        patch = gcov.patch(repository)
        writable(into)
        image, sent = _run(run, patch, guests, at_once, into)
        typer.echo("reading the counters")
        what = judge(run, sent, image.notes, repository, known)
        annotated = covered.annotate(what, repository)
    run.coverage = what.as_json()
    output.write(run, into)
    (into / "coverage.md").write_text(covered.table(what))
    (into / "coverage.txt").write_text(covered.as_text(annotated))
    (into / "coverage.html").write_text(covered.as_html(what, annotated))
    typer.echo(covered.table(what))
    gone = [f"unreached.toml: not so any more: {line}" for line in covered.stale(what, known)]
    for text in (*gone, *([run.trouble] if run.trouble else []), output.summary(run), f"results: {into}"):
        typer.echo(text)
    if keep and run.exit_status() <= 1:
        covered.write(JSON, covered.read(JSON) | {under_test.name: what})
        MARKDOWN.write_text(covered.document(covered.read(JSON)))
    status = run.exit_status()
    raise typer.Exit(status if status > 1 else 0 if what.good() and not gone else 1)


def _run(run: Run, patch: Patch, guests: MakeRuns, at_once: int, into: Path) -> tuple[Image, Sent]:
    """Build the last step with the patch that has it count, and run the cases; what each sent of its counters.

    What has arrived is kept where the user stops it. StepFailed where there is no image.
    """
    assert run.source
    kind, began = flavour.load(gcov.FLAVOUR), time.monotonic()
    counting = replace(run.series, patches=(*run.series.patches, patch))
    builder = Builder(run.source, flavour.build_as(counting, kind), arch.load(), into)
    run.steps[0].image = image = builder.image(len(counting.patches), every_30_s(typer.echo))
    kernel = assemble(image, run.steps[0].subject, flavour=kind)
    run.accel, run.accel_why = kernel.accel.name, kernel.accel.why
    stopping, one_at_a_time, sent = threading.Event(), threading.Lock(), Sent()
    runs, tar = guests(kernel, into, stopping), selftests_tar()

    with Progress(run, sys.stdout) as progress, ThreadPoolExecutor(at_once) as pool:

        def work(group: list[Case]) -> None:
            for cell in runs.run(group, tar):
                with one_at_a_time:
                    sent[cell.case] = given(cell.reports, "coverage")
                    run.add(replace(cell, reports=()))
                    progress.cell(cell)

        futures = [pool.submit(work, group) for group in groups(flavour.patient(run.cases, kind))]
        try:
            for future in futures:
                future.result()
        except BaseException as e:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(e, KeyboardInterrupt):
                raise
            run.interrupted = True
    if not any(sent.values()) and not run.interrupted:
        run.trouble = f"no case sent counters: is debugfs mounted in {kernel.root}?"
    run.seconds = time.monotonic() - began
    run.close()
    return image, sent


def judge(run: Run, sent: Sent, notes: Path, repository: Repository, known: dict[tuple[str, str], str]) -> Covered:
    """Which case ran which line first, in the order in which the cases were collected."""
    assert run.source
    added = {file: repository.added(file) for file in repository.touched(run.source.commit, repository.commits[-1])}
    wanted = {file: set(lines) for file, lines in added.items()}
    counters = Counters(notes, wanted, f"{arch.load().cross_compile}gcov")
    left, first = counters.places, dict[Place, str]()
    for case in run.cases:
        for counts in sent.get(case.nodeid, []):
            ran = counters.ran(counts, left)
            first |= dict.fromkeys(ran, case.nodeid)
            left -= ran
    lines = []
    for file, n in sorted(counters.places):
        text = repository.text(file).decode(errors="replace").splitlines()[n - 1].strip()
        by = first.get((file, n), "")
        lines.append(Line(file, n, added[file][n][0].id, text, by, "" if by else known.get((file, text), "")))
    patches = tuple((patch.id, patch.title) for patch in run.series.patches)
    return Covered(run.series.name, run.source.label, patches, sum(map(bool, sent.values())), tuple(lines))
