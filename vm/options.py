"""The options that several commands of perpatch share."""

from __future__ import annotations

from typing import Annotated

import typer

SeriesOption = Annotated[str, typer.Option("--series", help="name under patches/, directory of patches, or mbox")]
StepsOption = Annotated[
    list[str] | None, typer.Option("--step", help="base, a number, 2/3, a patch's id, or all; repeatable")
]
FlavourOption = Annotated[str, typer.Option("--flavour", help="kasan, lockdep, kmemleak, kcsan, profile")]
TreeOption = Annotated[str | None, typer.Option("--tree", help="a kernel git tree to apply the series on")]
BaseOption = Annotated[str | None, typer.Option("--base", help="the revision of --tree (default: HEAD)")]
TarballOption = Annotated[str | None, typer.Option("--tarball", help="a kernel source tarball, PATH#SHA256")]
SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="run guests on the workers of a dask scheduler")
]
