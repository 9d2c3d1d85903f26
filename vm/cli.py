"""The command perpatch: thin words over the stages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer._click.core import ParameterSource  # typer carries its own click and names it nowhere else
from typer._click.exceptions import ClickException

from vm import capsule, claims, cover, docs, mutate, series, sizes
from vm.errors import Infra, Mistake, StepFailed
from vm.options import BaseOption, FlavourOption, SchedulerOption, SeriesOption, StepsOption, TarballOption, TreeOption
from vm.paths import REPO, cache, writable
from vm.plugin import DEFAULT_SERIES

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Apply a kernel series patch by patch, boot every step, run the cases in it, and say what each patch does.",
)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    series_word: SeriesOption = DEFAULT_SERIES,
    step: StepsOption = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", help="debian:6.1, a linux-image package, host, a bzImage, or SERIES@STEP; repeatable"),
    ] = None,
    flavour: FlavourOption = "",
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
    accel: Annotated[str, typer.Option(help="auto, kvm or tcg")] = "auto",
    guest: Annotated[str, typer.Option(help="warm: our own root; vng: virtme-ng on this host's root")] = "warm",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="guests at a time")] = os.cpu_count() or 1,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="run each case so often: FLAKY where it differs")] = 1,
    rerun_lost: Annotated[bool, typer.Option("--rerun-lost", help="run again what INFRA took")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="let a guest that hangs live on, for gdb")] = False,
    strict_skips: Annotated[bool, typer.Option("--strict-skips", help="a SKIP is red")] = False,
    scheduler: SchedulerOption = None,
    results: Annotated[Path | None, typer.Option(help="where to write (default: results/<time>-<series>)")] = None,
) -> None:
    """Run the cases on every step, or on --kernel, and print the matrix. Other words go to pytest (-k, -m, paths)."""
    from vm import chosen, output
    from vm import flavour as flavours
    from vm.kernel import place
    from vm.plugin import collect
    from vm.progress import Progress
    from vm.run import Options, Pipeline, prepare, steps_of

    _choice("--accel", accel, ("auto", "kvm", "tcg"))
    _choice("--guest", guest, ("warm", "vng"))
    under_test = series.load(series_word)
    kernels = tuple(dict.fromkeys(kernel or ()))
    if kernels and guest == "vng":
        raise Mistake("--guest vng: cannot run --kernel: leave it out, warm guests can")
    if keep and guest == "vng":
        raise Mistake("--keep: vng keeps QEMU's monitor to itself: leave --guest vng out")
    if scheduler and (keep or guest == "vng"):
        raise Mistake("--scheduler: goes with neither --keep nor --guest vng: those are for who sits beside the guest")
    if kernels and flavour:
        raise Mistake(
            "--flavour: is a matter of building, and --kernel brings a kernel that is built: give one of them"
        )
    flavours.load(flavour)
    options = Options(tree, base, tarball, accel, guest, jobs, strict_skips, kernels, flavour, repeat, rerun_lost, keep)
    steps = steps_of(under_test, step or (["all"] if not kernels else []))
    cases = collect(series_word, context.args)
    filled = prepare(under_test, cases, steps, options)
    filled.how = (
        *_given(context, "series_word", "flavour", "tree", "base", "tarball", "accel", "guest"),
        *chosen.words(context.args),
    )
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-{under_test.name}"
    writable(into)
    for view in ("results.json", "junit.xml", "results.ktap", "matrix.md"):
        (into / view).unlink(missing_ok=True)  # of an earlier run into this directory
    try:
        with (
            place(scheduler, jobs) as (guests, at_once),
            Progress(filled, sys.stdout or Path(os.devnull).open("w"), strict_skips) as progress,
        ):
            Pipeline(filled, replace(options, jobs=at_once), into, progress, guests).fill()
    except Mistake:
        if not any(into.iterdir()):
            into.rmdir()
        raise
    try:
        output.write(filled, into)
    except OSError as e:
        raise Infra(f"{into}: results not written whole: {e.strerror}") from None
    try:
        progress.finish()
        typer.echo(f"results: {into}")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read us has gone (head); what the run came to is in the exit status all the same
        _nobody_reads()
    raise typer.Exit(filled.exit_status())


@app.command()
def build(
    series_word: SeriesOption = DEFAULT_SERIES,
    step: StepsOption = None,
    flavour: FlavourOption = "",
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Build the steps of a series and print where each image is."""
    from vm import arch, source
    from vm import flavour as flavours
    from vm.image import Builder
    from vm.run import steps_of

    under_test = series.load(series_word)
    steps = steps_of(under_test, step or ["all"])
    found = source.find(under_test.base, tree, base, tarball, _note)
    under_test = flavours.build_as(under_test, flavours.load(flavour))
    builder = Builder(found, under_test, arch.load(), cache() / "logs" / under_test.name)
    failed = False
    for k in steps:
        try:
            with _building(under_test.step_name(k)) as progress:
                image = builder.image(k, progress)
        except StepFailed as e:
            failed = True
            typer.echo(f"{under_test.step_name(k)}: {e.verdict}: {e.reason}" + (f" (see {e.log})" if e.log else ""))
        else:
            typer.echo(f"{under_test.step_name(k)}: {image.kernel}")
            for warning in image.new_warnings:
                typer.echo(f"{under_test.step_name(k)}: new warning: {warning}")
    raise typer.Exit(1 if failed else 0)


app.command()(sizes.sizes)
app.command()(claims.claims)
app.command()(capsule.capsule)
app.command()(mutate.mutate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(cover.cover)


@app.command()
def shell(
    series_word: SeriesOption = DEFAULT_SERIES,
    step: Annotated[str | None, typer.Option(help="base, a number, 2/3 or a patch's id (default: the last)")] = None,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
    accel: Annotated[str, typer.Option(help="auto, kvm or tcg")] = "auto",
) -> None:
    """A shell in one step's kernel, on a copy-on-write view of this host's root (virtme-ng)."""
    from vm import accel as acceleration
    from vm import arch, root, source, vng
    from vm.image import Builder

    _choice("--accel", accel, ("auto", "kvm", "tcg"))
    under_test = series.load(series_word)
    k = under_test.step(step) if step else len(under_test.patches)
    data = arch.load()
    found = source.find(under_test.base, tree, base, tarball, _note)
    with _building(under_test.step_name(k)) as progress:
        image = Builder(found, under_test, data, cache() / "logs" / under_test.name).image(k, progress)
    chosen = acceleration.choose(accel, data, image, root.image())
    typer.echo(f"{under_test.name} {under_test.step_name(k)} on {found.label}; {chosen.why}", err=True)
    raise typer.Exit(vng.shell(image.kernel, chosen.name == "kvm"))


@app.command()
def doctor(series_word: SeriesOption = DEFAULT_SERIES) -> None:
    """Say what this host has and lacks, with the exact mend for each."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vm.doctor import examine

    findings = examine(series.load(series_word).base)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("", "what", "found", "mend"):
        table.add_column(heading, overflow="fold")
    for f in findings:
        sign, style = {True: ("ok", "green"), False: ("MISSING", "bold red"), None: ("note", "yellow")}[f.good]
        table.add_row(Text(sign, style=style), f.what, Text(f.found), Text("" if f.good else f.mend))
    Console().print(table)
    raise typer.Exit(3 if any(f.good is False for f in findings) else 0)


app.command("list")(docs.listing)
app.command()(docs.docs)


@app.command()
def clean(
    everything: Annotated[bool, typer.Option("--all", help="the sources too, which have to be fetched again")] = False,
) -> None:
    """Remove cached build directories, images, roots and states."""
    if cache().is_dir() and not (cache() / "CACHEDIR.TAG").is_file():
        raise Mistake(f"{cache()}: no CACHEDIR.TAG in it: not a cache of ours, nothing was removed")
    for name in ("build", "images", "roots", "states", "accel", "logs", *(("sources",) if everything else ())):
        where = cache() / name
        if where.is_symlink():
            where.unlink()
        elif where.is_dir():
            shutil.rmtree(where)
            typer.echo(f"removed {where}")


def _nobody_reads() -> None:
    """Nothing more can be said to standard output, and Python must not try when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _note(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def _building(step: str) -> Iterator[Callable[[int, str], None]]:
    """A build's progress: one line that changes on a terminal, a line every 30 s elsewhere."""
    from rich.console import Console

    from vm.single import every_30_s

    console = Console(stderr=True)
    if not console.is_terminal:
        yield every_30_s(lambda text: _note(f"{step}: {text}"))
        return
    with console.status(step) as status:
        yield lambda objects, what: status.update(f"{step}: {objects} objects, {what}")


def _given(context: typer.Context, *names: str) -> list[str]:
    """Of these options those that were on the command line, as they would be written there."""
    options = [o for o in context.command.params if o.name in names]
    said = [o for o in options if context.get_parameter_source(str(o.name)) is ParameterSource.COMMANDLINE]
    return [word for o in said for word in (o.opts[0], str(context.params[str(o.name)]))]


def _choice(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise Mistake(f"{option} {given}: not known: one of {', '.join(known)}")


def main() -> NoReturn:
    """Entry point: one line for each expected trouble, and the exit status that belongs to it."""
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also where a shell has us ignore SIGINT
    try:
        # Outside of standalone mode the status of typer.Exit is what the call returns.
        returned = app(standalone_mode=False)
        status = returned if isinstance(returned, int) else 0
    except Mistake as e:
        print(f"perpatch: {e}", file=sys.stderr)
        status = 2
    except (Infra, StepFailed) as e:
        print(f"perpatch: {e}", file=sys.stderr)
        status = 3
    except subprocess.CalledProcessError as e:
        print(f"perpatch: {e}", file=sys.stderr)
        status = 3
    except ClickException as e:
        if said := e.format_message():  # nothing where it has just shown the help
            print(f"perpatch: {said.rstrip('?.')}: 'perpatch --help' says what there is", file=sys.stderr)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        _nobody_reads()
        status = 1
    sys.exit(status)
