"""What a run shows while it works: a live display on a terminal, plain lines in a pipe; at the end the table."""

from __future__ import annotations

import time
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vm.matrix import Run, Step
from vm.output import crash_lines, figures_text, headings, passed, summary, with_figures
from vm.reports import Cell
from vm.run import Listener
from vm.verdict import Verdict, red

_SIGN = {Verdict.PASS: ("PASS", "green"), Verdict.XFAIL: ("XFAIL", "cyan"), Verdict.ABSENT: ("ABSENT", "bright_black")}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise as any other trouble with the output does; rich would end the process."""
        raise BrokenPipeError


class Progress(Listener):
    """A listener that tells; use it as a context."""

    def __init__(self, run: Run, file: IO[str], strict: bool = False) -> None:
        self.run, self.strict = run, strict
        # A pipe has no width; 80 columns would fold the names of the cases.
        width = None if file.isatty() else 160
        self.console = _Console(file=file, soft_wrap=True, highlight=False, width=width)
        self.began = time.monotonic()
        self.state = {s.name: "waiting" for s in run.steps}
        self.last_line: dict[str, float] = {}
        self.live = Live(console=self.console, get_renderable=self._table, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def _print(self, text: str) -> None:
        try:
            self.console.print(Text(f"[{time.monotonic() - self.began:5.0f} s] {text}"))
        except OSError:
            pass  # whoever read us has gone; the run goes on, its results are written

    def say(self, text: str) -> None:
        self._print(text)

    def building(self, step: str, objects: int, what: str) -> None:
        self.state[step] = f"building: {objects} objects, {what}" if objects else what
        self._now_and_then(step)

    def _now_and_then(self, step: str) -> None:
        """In a pipe one line every 30 s says that a step is alive; a line an object or a case would drown the log."""
        if not self.console.is_terminal and time.monotonic() - self.last_line.get(step, 0) > 30:
            self.last_line[step] = time.monotonic()
            self._print(f"{step}: {self.state[step]}")

    def built(self, step: Step) -> None:
        if step.image is None or step.verdict:
            self.state[step.name] = f"{step.verdict}: {step.reason}"
            where = f" (see {step.log})" if step.log else ""
            self._print(f"{step.name}: {step.verdict}: {step.reason}{where}")
            return
        self.state[step.name] = "built"
        made = f"{step.image.seconds:.0f} s when it was built" if not step.image.release else step.image.release
        self._print(f"{step.name}: image {step.image.key} ({made})")
        for warning in step.image.new_warnings:
            self._print(f"{step.name}: new warning: {warning}")

    def booted(self, step: str, kind: str, seconds: float) -> None:
        self.state[step] = "running"
        if seconds:
            self._print(f"{step}: booted and saved ({kind}, {seconds:.0f} s)")

    def cell(self, cell: Cell) -> None:
        have = sum(len(times) for (_, step), times in self.run.times.items() if step == cell.step)
        all_ = len(self.run.cases) * self.run.repeat
        bad = sum(red(c.verdict, self.strict) for c in self.run.cells.values() if c.step == cell.step)
        self.state[cell.step] = f"{have}/{all_} cases" + (f", {bad} red" if bad else "")
        if red(cell.verdict, self.strict):
            self._print(f"{cell.step}: {cell.verdict} {cell.case}: {cell.reason}")
        elif have == all_:
            self._print(f"{cell.step}: {self.state[cell.step]} done")
        else:
            self._now_and_then(cell.step)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for step in self.run.steps:
            table.add_row(step.name, Text(self.state[step.name], overflow="ellipsis"))
        return table

    def finish(self) -> None:
        """Print the matrix, what is red and why, and the summary."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("case", overflow="fold")
        for heading in headings(self.run):
            table.add_column(heading, no_wrap=True)
        for case in self.run.cases:
            cells = [self.run.cells.get((case.nodeid, s.name)) for s in self.run.steps]
            table.add_row(Text(case.nodeid.removeprefix("selftests/")), *(self._sign(c) for c in cells))
        self.console.print(table)
        self._figures()
        for cell in self.run.red_cells():
            self.console.print(Text(f"{cell.step} {cell.case}: {cell.verdict}: {cell.reason}"), style="red")
            if again := self.run.reproducer(cell):
                self.console.print(Text(f"    {again}"))
        for line in crash_lines(self.run):
            self.console.print(Text(line), style="red")
        if self.run.trouble:
            self.console.print(Text(self.run.trouble), style="red")
        self.console.print(Text(summary(self.run)), style="bold")

    def _figures(self) -> None:
        rows = with_figures(self.run)
        if not rows:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("figure", *headings(self.run)):
            table.add_column(heading, overflow="fold")
        for case, row in rows:
            table.add_row(
                Text(case.split("::")[-1]), *(Text(figures_text(c).replace("; ", "\n") if c else "") for c in row)
            )
        self.console.print(table)

    def _sign(self, cell: Cell | None) -> Text:
        if cell is None:
            return Text("")
        word, style = _SIGN.get(cell.verdict, (str(cell.verdict), "bold red"))
        if cell.times:
            word += f" {passed(cell)}"
        if cell.verdict is Verdict.SKIP and not red(cell.verdict, self.strict):
            style = "yellow"
        return Text(word, style=style)
