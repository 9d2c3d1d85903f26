"""The worker's side of a run on more than one machine: does one order of a client, see spread.py.

It runs what a machine of its own would run (kernel.Guests). Image and root it has in its cache, by their content keys,
or asks the client for them.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from distributed import Status, Worker, get_worker

from vm import arch, qemu
from vm.cases import Case
from vm.errors import Mistake, StepFailed
from vm.image import Image, cached
from vm.kernel import Guests, Kernel
from vm.paths import VM, cache, locked
from vm.reports import Cell
from vm.root import whole


@dataclass(frozen=True)
class Order:
    """What a worker is to do: boot the kernel, or run a group of cases on it, and tell each cell under a topic.

    version: see version(). files: the kernel's image directory and its root, relative to the cache; a worker has them,
    or says that it Lacks them. tar: "" for a boot. name: tells the cells of this order from others under the topic.
    """

    version: str
    kernel: Kernel
    files: tuple[str, str]
    group: list[Case]
    tar: str
    topic: str
    name: str


@dataclass(frozen=True)
class Lacks:
    """A worker's address, and files, relative to the cache, that it has to be given before it can do anything."""

    worker: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """A cell, or a boot that failed, and the console that it points to."""

    what: Cell | tuple[str, str]
    console: bytes = b""


@functools.cache
def version() -> str:
    """What client and workers must have in common, for cells to mean the same everywhere: this program and QEMU."""
    code = hashlib.sha256()
    for file in sorted(VM.rglob("*.py")):
        if "tests" not in file.parts:
            code.update(file.read_bytes())
    return f"perpatch {code.hexdigest()[:12]}, QEMU {qemu.version(arch.load().qemu)}"


def serve(order: Order) -> Lacks | float | list[Told]:
    """On a worker: cells of a group; for a boot the seconds that it took, or one Told of why it failed."""
    worker = get_worker()
    if order.version != version():
        raise Mistake(f"worker {worker.address}: has {version()}, not {order.version}: give it the same checkout")
    image = _image(order.files[0])
    if image is None or not whole(cache() / order.files[1]):
        return Lacks(worker.address, lacks(order.files))
    kernel = replace(order.kernel, image=image, root=cache() / order.files[1])
    with tempfile.TemporaryDirectory(prefix="perpatch-") as logs, _while_wanted(worker) as stopping:
        guests, told = Guests(kernel, Path(logs), stopping), list[Told]()
        if not order.tar:
            try:
                return guests.boot(order.group)
            except StepFailed as e:
                return [Told((e.verdict, e.reason), _read(e.log))]
        with closing(guests.run(order.group, order.tar)) as cells:
            for cell in cells:
                told.append(Told(cell, _read(Path(cell.console)) if cell.console else b""))
                worker.log_event(order.topic, [order.name, pickle.dumps(told[-1])])
        return told


def lacks(files: tuple[str, ...]) -> tuple[str, ...]:
    """Those of an image directory and a root that are not in this machine's cache, or not whole."""
    return tuple(f for f in files if not (whole(cache() / f) if f.endswith(".squashfs") else _image(f)))


def put(contents: dict[str, bytes]) -> None:
    """On a worker: take files (name relative to the cache, bytes) into its cache."""
    with locked(cache() / "fetched.lock"):
        # An image counts from its record on, a root from its sum.
        for name in sorted(contents, key=lambda name: name.endswith(("image.json", ".sha256"))):
            place = cache() / name
            place.parent.mkdir(parents=True, exist_ok=True)
            half = place.with_name(f"{place.name}.half")
            half.write_bytes(contents[name])
            half.rename(place)


def _image(name: str) -> Image | None:
    return cached(Path(name).name, str(Path(name).parent))


def _read(log: Path | None) -> bytes:
    return log.read_bytes() if log and log.is_file() else b""


@contextmanager
def _while_wanted(worker: Worker) -> Iterator[threading.Event]:
    """An event that is set when nobody waits for this thread's task any more.

    A client that stops reading cancels the task, and for a client that is gone the scheduler does; the engine leaves it
    to the task to find out.
    """
    key, stopping, ended = worker.get_current_task(), threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing" or worker.status in (Status.closing, Status.closed):
                stopping.set()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stopping
    finally:
        ended.set()
        watcher.join()
