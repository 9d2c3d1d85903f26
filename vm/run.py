"""From a series to a matrix: builds step after step, and beside that boots and runs what is built already."""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from vm import accel, arch, flavour, qemu, root, source
from vm.cases import Case, groups
from vm.errors import Infra, Mistake, StepFailed
from vm.guest import selftests_tar
from vm.image import Builder, Image
from vm.kernel import Guests, MakeRuns, Runs, assemble
from vm.matrix import Run, Step
from vm.qemu import Machine
from vm.released import slug
from vm.reports import Cell
from vm.series import Series
from vm.subject import Subject, bring, step_subject
from vm.verdict import Verdict


@dataclass(frozen=True)
class Options:
    """What a user may choose. tree, base, tarball: see source.find(). accel: auto, kvm, tcg. guest: warm or vng.

    kernels: columns beside the steps, as released.find() takes them. flavour: see flavour.py. repeat: times that
    each case runs. rerun_lost: run once more what the host's trouble took. keep: let a
    guest that hangs live on for gdb until the run is interrupted.
    """

    tree: str | None = None
    base: str | None = None
    tarball: str | None = None
    accel: str = "auto"
    guest: str = "warm"
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    strict_skips: bool = False
    kernels: tuple[str, ...] = ()
    flavour: str = ""
    repeat: int = 1
    rerun_lost: bool = False
    keep: bool = False


class Listener:
    """What wants to know how a run goes; the default wants to know nothing. Calls come from one thread at a time."""

    def say(self, text: str) -> None:
        """One line of news."""

    def building(self, step: str, objects: int, what: str) -> None:
        """An object of a step's kernel was compiled."""

    def built(self, step: Step) -> None:
        """A step has its image, or the verdict that took its place."""

    def booted(self, step: str, kind: str, seconds: float) -> None:
        """A warm state is there; 0 seconds: it was in the cache."""

    def cell(self, cell: Cell) -> None:
        """A verdict arrived."""


def prepare(series: Series, cases: list[Case], steps: list[int], options: Options) -> Run:
    """An empty Run for these steps and options.kernels."""
    titles = ["base", *(p.title for p in series.patches)]
    columns = [Step(step_subject(series, k), titles[k], k) for k in steps]
    # What a kernel carries is known when it is there.
    columns += [Step(Subject(word, series, frozenset()), word) for word in options.kernels]
    return Run(
        series=series,
        source=None,
        cases=cases,
        steps=columns,
        began=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        strict_skips=options.strict_skips,
        guest=options.guest,
        flavour=options.flavour,
        repeat=options.repeat,
    )


class Pipeline:
    """One run: fill() does everything and always leaves a closed Run; stop() ends it early from another thread."""

    def __init__(
        self, run: Run, options: Options, results: Path, listener: Listener, guests: MakeRuns = Guests
    ) -> None:
        self.run, self.options, self.results, self.guests = run, options, results, guests
        self.arch = arch.load()
        self.flavour = flavour.load(options.flavour)
        self.listener = listener
        self.stopping = threading.Event()
        self.news: queue.Queue[Callable[[], None]] = queue.Queue()
        self.outstanding = 0
        self.builder: Builder | None = None

    def fill(self) -> None:
        """Build, boot and run; Mistake for what the user has to mend, everything else ends as a verdict in the Run."""
        began = time.monotonic()
        try:
            o = self.options
            if any(step.number is not None for step in self.run.steps):
                self.run.source = source.find(self.run.series.base, o.tree, o.base, o.tarball, self.listener.say)
            self.run.versions = {
                "qemu": qemu.version(self.arch.qemu),
                "python": platform.python_version(),
                "host": f"{platform.system()} {platform.release()} {platform.machine()}",
            } | {name: v for name, v in root.distributions().items() if name in root.LIBRARIES}
            self._work()
        except Infra as e:
            self.run.trouble = str(e)
            for step in self.run.steps:
                if not step.verdict:
                    self.run.lose(step, Verdict.INFRA, str(e))
        except KeyboardInterrupt:
            self.run.interrupted = True
        except Mistake:
            raise
        except Exception as e:  # a fault of ours must not cost what had arrived
            self.run.trouble = f"internal error: {type(e).__name__}: {e}"
            (self.results / "internal-error.txt").write_text(traceback.format_exc())
        finally:
            self.stop()
            self.run.seconds = time.monotonic() - began
            self.run.close()

    def stop(self) -> None:
        """Let no further guest or build begin, and end those that run."""
        self.stopping.set()
        if self.builder:
            self.builder.stop()

    def _work(self) -> None:
        if self.run.source:
            series = flavour.build_as(self.run.series, self.flavour)
            self.builder = Builder(self.run.source, series, self.arch, self.results)
        self.tar = selftests_tar()
        with ThreadPoolExecutor(1) as build, ThreadPoolExecutor(self.options.jobs) as self.pool:
            try:
                # Kernels that only have to be fetched first: their guests run while the steps are built.
                for step in sorted(self.run.steps, key=lambda s: s.number is not None):
                    self._submit(build, self._build, step)
                while self.outstanding:
                    # A timeout, since a blocking get() without one cannot be interrupted on every platform.
                    try:
                        self.news.get(timeout=0.5)()
                    except queue.Empty:
                        pass
            except BaseException:
                self.stop()
                raise

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[..., None], *args: Any) -> None:
        """Run work in a pool; its end, good or bad, is news for the main thread, which alone touches the Run."""

        def guarded() -> None:
            bad: BaseException | None = None
            try:
                if not self.stopping.is_set():
                    work(*args)
            except BaseException as e:  # raised again in the main thread
                bad = e
            self.news.put(partial(self._ended, bad))

        self.outstanding += 1
        pool.submit(guarded)

    def _ended(self, bad: BaseException | None) -> None:
        self.outstanding -= 1
        if bad is not None and not self.stopping.is_set():
            raise bad

    def _build(self, step: Step) -> None:
        told = [0.0]

        def progress(objects: int, what: str) -> None:
            if time.monotonic() - told[0] > 0.2:
                told[0] = time.monotonic()
                self.news.put(partial(self.listener.building, step.name, objects, what))

        try:
            if step.number is None:
                image, step.subject = self._elsewhere(step.name)
            else:
                assert self.builder
                image = self.builder.image(step.number, progress)
        except StepFailed as e:
            self.news.put(partial(self._no_image, step, e))
        else:
            self.news.put(partial(self._image, step, image))

    def _elsewhere(self, word: str) -> tuple[Image, Subject]:
        o = self.options
        return bring(word, self.run.series, self.arch, self.results / slug(word), self._say, o.tree, o.base)

    def _say(self, text: str) -> None:
        self.news.put(partial(self.listener.say, text))

    def _no_image(self, step: Step, failed: StepFailed) -> None:
        self.run.lose(step, Verdict(failed.verdict), failed.reason, str(failed.log or ""))
        self.listener.built(step)

    def _image(self, step: Step, image: Image) -> None:
        step.image = image
        self.listener.built(step)
        if self.run.cases:
            self._submit(self.pool, self._boot, step, image)

    def _boot(self, step: Step, image: Image) -> None:
        """Have the states that the step's groups need, then hand each group to the pool."""
        o = self.options
        kernel = assemble(image, step.subject, o.accel, self.flavour, o.guest, o.keep)
        self.news.put(partial(self._accelerated, kernel.accel))
        guests = self.guests(kernel, self.results / step.dir, self.stopping)
        dead: dict[Machine, StepFailed | None] = {}
        for group in groups(flavour.patient(self.run.cases, self.flavour)):
            machine = kernel.machine(group[0])
            if machine not in dead:
                dead[machine] = None
                try:
                    seconds = guests.boot(group)
                except StepFailed as e:
                    if len(dead) == 1:  # a kernel that does not boot is not asked again with other hardware
                        self.news.put(partial(self._no_image, step, e))
                        return
                    dead[machine] = e
                else:
                    self.news.put(partial(self.listener.booted, step.name, machine.name, seconds))
            for _ in range(o.repeat):  # each time in a guest of its own
                if why := dead[machine]:
                    self.news.put(partial(self._unbooted, group, step, why))
                else:
                    self.news.put(partial(self._submit, self.pool, self._group, guests, group, step))

    def _unbooted(self, group: list[Case], step: Step, why: StepFailed) -> None:
        """The kernel boots, but not on the hardware that these cases ask for: what the others say stands."""
        for case in group:
            self._cell(Cell(case.nodeid, step.name, Verdict(why.verdict), why.reason, console=str(why.log or "")))

    def _accelerated(self, chosen: accel.Accel) -> None:
        if not self.run.accel:
            self.run.accel, self.run.accel_why = chosen.name, chosen.why
            self.listener.say(f"accelerator: {chosen.why}")

    def _group(self, guests: Runs, group: list[Case], step: Step) -> None:
        for cell in guests.run(group, self.tar):
            self.news.put(partial(self._took, cell, guests, group, step))

    def _took(self, cell: Cell, guests: Runs, group: list[Case], step: Step) -> None:
        if self.options.rerun_lost and self.run.run_again(cell):
            self.listener.say(f"{cell.step}: {cell.case} runs again: {cell.reason}")
            again = [case for case in group if case.nodeid == cell.case]
            self._submit(self.pool, self._group, guests, again, step)
        else:
            self._cell(cell)

    def _cell(self, cell: Cell) -> None:
        self.run.add(cell)
        self.listener.cell(cell)


def steps_of(series: Series, words: list[str]) -> list[int]:
    """Steps as a user wrote them ("2", "base", "1/3", a patch's id, "all"), sorted."""
    return sorted({k for word in words for k in (series.steps if word == "all" else [series.step(word)])})
