"""Guests on more than one machine: groups of cases as tasks of a dask.distributed scheduler, cells as they come.

What dies with a worker is done again by another (the engine's doing), and a cell that had come before is not told
twice. What a worker does is in worker.py.
"""

from __future__ import annotations

import itertools
import pickle
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker

from vm.cases import Case
from vm.errors import Infra, Mistake, StepFailed
from vm.kernel import Kernel
from vm.paths import cache
from vm.reports import Cell
from vm.verdict import Verdict
from vm.worker import Lacks, Order, Told, lacks, put, serve, version

CONNECT_SECONDS = 10
NO_WORKER_SECONDS = 60


class Cluster:
    """The client's side: a scheduler and its workers. A context; leaving it ends what the workers still do for us."""

    def __init__(self, address: str) -> None:
        """Mistake where nothing answers at the address, or no worker has come to it."""
        try:
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as e:
            why = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise Mistake(f"--scheduler {address}: does not answer: {why}: start one with 'dask scheduler'") from None
        self.address, self.topic = address, f"perpatch-{uuid.uuid4().hex}"
        self._orders: dict[str, queue.Queue[Told | None]] = {}
        self._giving = threading.Lock()
        self._seen = time.monotonic()  # when there last was a worker
        try:
            self.threads = self._ask_threads()
            if not self.threads:
                raise Mistake(f"--scheduler {address}: has no workers: start one with 'dask worker {address}'")
            self.client.subscribe_topic(self.topic, self._arrived)
        except BaseException:
            self.client.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # the scheduler may be gone; what this run came to is known
            self.client.close(timeout=CONNECT_SECONDS)

    def guests(self, kernel: Kernel, logs: Path, stopping: threading.Event) -> Remote:
        """A kernel whose guests run on the workers; consoles of those that die come into logs."""
        return Remote(self, kernel, logs, stopping)

    def submit(self, order: Order, news: queue.Queue[Told | None]) -> Future[Any]:
        """Hand out an order; its cells come as news, None at its end."""
        self._orders[order.name] = news
        future = self.client.submit(serve, order, key=f"{order.name}-{uuid.uuid4().hex[:8]}", pure=False)
        future.add_done_callback(lambda _: news.put(None))
        return future

    def forget(self, order: Order, future: Future[Any]) -> None:
        """Take no more news of an order; what still runs of it ends."""
        self._orders.pop(order.name, None)
        with suppress(Exception):  # the scheduler may be gone
            future.cancel()

    def give(self, wanted: Lacks) -> None:
        """Send files to a worker; one that is gone by now needs none, one that did not take them asks again."""
        with self._giving, suppress(KeyError, ValueError, OSError):  # two orders may lack the same
            lacking = self.client.run(lacks, wanted.files, workers=[wanted.worker])[wanted.worker]
            contents = {name: data for file in lacking for name, data in _contents(cache() / file).items()}
            self.client.run(put, contents, workers=[wanted.worker])

    def check(self) -> None:
        """Infra where there has been no worker for long, or no scheduler any more."""
        if self._ask_threads():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > NO_WORKER_SECONDS:
            raise Infra(f"{self.address}: no worker there for {NO_WORKER_SECONDS} s")

    def _ask_threads(self) -> int:
        """Threads of all workers that there are now; Infra where the scheduler does not say."""
        try:
            return sum(self.client.nthreads().values())
        except (OSError, TimeoutError, CancelledError) as e:
            raise Infra(f"{self.address}: the scheduler went away: {e}") from None

    def _arrived(self, event: tuple[float, tuple[str, bytes]]) -> None:
        name, told = event[1]
        if news := self._orders.get(name):
            news.put(pickle.loads(told))


class Remote:
    """See kernel.Runs: a kernel whose guests run on the workers of a cluster."""

    def __init__(self, cluster: Cluster, kernel: Kernel, logs: Path, stopping: threading.Event) -> None:
        self.cluster, self.kernel, self.logs, self.stopping = cluster, kernel, logs, stopping
        self._consoles = itertools.count(1)

    def boot(self, group: list[Case]) -> float:
        """See Runs; on one worker, the others boot it when they first need it."""
        try:
            came = next(self._come(self._order(group, "")), 0.0)
        except KilledWorker as e:
            raise Infra(f"boot: {_killed(e)}") from None
        if isinstance(came, Told):
            assert isinstance(came.what, tuple)
            verdict, reason = came.what
            raise StepFailed(verdict, reason, self._console(came.console))
        return came

    def run(self, group: list[Case], tar: str) -> Generator[Cell, None, None]:
        """See Runs; INFRA for cases under which worker after worker ended."""
        have = set[str]()
        try:
            with closing(self._come(self._order(group, tar))) as came:
                for told in came:
                    assert isinstance(told, Told) and isinstance(told.what, Cell)
                    if told.what.case not in have:
                        have.add(told.what.case)
                        yield replace(told.what, console=str(self._console(told.console) or ""))
        except KilledWorker as e:
            for case in group:
                if case.nodeid not in have:
                    yield Cell(case.nodeid, self.kernel.subject.name, Verdict.INFRA, _killed(e))

    def _order(self, group: list[Case], tar: str) -> Order:
        image, root = Path(self.kernel.image.dir), self.kernel.root
        files = str(image.relative_to(cache())), str(root.relative_to(cache()))
        return Order(version(), self.kernel, files, group, tar, self.cluster.topic, uuid.uuid4().hex)

    def _come(self, order: Order) -> Generator[Told | float, None, None]:
        """What comes of an order, told as it comes and once more at its end; nothing more once all of it is stopped."""
        news: queue.Queue[Told | None] = queue.Queue()
        given = Counter[str]()
        while True:
            future = self.cluster.submit(order, news)
            try:
                yield from self._until_end(news)
                if self.stopping.is_set():
                    return
                result = _result(future)
            finally:
                self.cluster.forget(order, future)
            if not isinstance(result, Lacks):
                yield from result if isinstance(result, list) else [result]
                return
            given[result.worker] += 1
            if given[result.worker] == 3:
                raise Infra(f"worker {result.worker}: lacks what it was given: {', '.join(result.files)}")
            self.cluster.give(result)

    def _until_end(self, news: queue.Queue[Told | None]) -> Iterator[Told]:
        checked = time.monotonic()
        while not self.stopping.is_set():
            try:
                told = news.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() - checked > CONNECT_SECONDS:
                    self.cluster.check()
                    checked = time.monotonic()
                continue
            if told is None:
                return
            yield told

    def _console(self, text: bytes) -> Path | None:
        """Keep what a worker has read from a console."""
        if not text:
            return None
        self.logs.mkdir(parents=True, exist_ok=True)
        path = self.logs / f"worker-{next(self._consoles)}.console"
        path.write_bytes(text)
        return path


def _contents(path: Path) -> dict[str, bytes]:
    """An image's directory or a root with its sum, as put() takes them."""
    parts = path.iterdir() if path.is_dir() else (path, path.with_suffix(".sha256"))
    return {str(part.relative_to(cache())): part.read_bytes() for part in parts}


def _result(future: Future[Any]) -> Lacks | float | list[Told]:
    try:
        result: Lacks | float | list[Told] = future.result()
    except (KilledWorker, Mistake, Infra):
        raise
    except CancelledError as e:
        raise Infra(f"the scheduler went away: {e}") from None
    except Exception as e:  # whatever a worker may fail with: another checkout, a full disk
        raise Infra(f"a worker failed: {type(e).__name__}: {e}") from None
    return result


def _killed(e: KilledWorker) -> str:
    return f"{e.allowed_failures + 1} workers in a row ended in the middle of it, the last at {e.last_worker.address}"
