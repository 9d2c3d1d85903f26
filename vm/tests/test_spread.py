"""A scheduler and a worker in this process, whose guests are made up: what comes back, what ends, what is said."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import Future, KilledWorker, LocalCluster

from vm import arch, spread, worker
from vm.accel import Accel
from vm.cases import Case
from vm.errors import Infra, Mistake, StepFailed
from vm.image import Image
from vm.kernel import Kernel
from vm.reports import Cell
from vm.series import load
from vm.spread import Cluster, Remote
from vm.subject import step_subject
from vm.verdict import Verdict

IMAGE = Image("key", "", "", "cc", "", (), (), 0.0, 0)
CASES = [Case(f"selftests/x/test_y.py::test_{n}", "") for n in ("one", "two", "three")]

GOT: dict[str, bytes] = {}


def note(contents: dict[str, bytes]) -> None:
    """In the place of worker.put, sent to the worker by its name."""
    GOT.update(contents)


class Made:
    """In the place of kernel.Guests on the worker."""

    boots: Callable[[], float] = staticmethod(lambda: 1.5)
    ended = threading.Event()  # a guest that was read to its end, or stopped
    waits = False
    console = ""

    def __init__(self, kernel: Kernel, logs: Path, stopping: threading.Event) -> None:
        self.logs, self.stopping = logs, stopping

    def boot(self, group: list[Case]) -> float:
        return Made.boots()

    def run(self, group: list[Case], tar: str) -> Iterator[Cell]:
        log = self.logs / "x.console"
        for case in group:
            log.write_text(Made.console)
            yield Cell(case.nodeid, "3/3", Verdict.PASS, console=str(log) if Made.console else "")
            if Made.waits:
                self.stopping.wait(20)
                if self.stopping.is_set():
                    Made.ended.set()
                return


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERPATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def remote(engine: LocalCluster, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setattr(worker, "Guests", Made)
    monkeypatch.setattr(worker, "_image", lambda name: IMAGE)
    monkeypatch.setattr(worker, "whole", lambda file: True)
    for name, value in {"boots": Made.boots, "ended": threading.Event(), "waits": False, "console": ""}.items():
        monkeypatch.setattr(Made, name, staticmethod(value) if name == "boots" else value)
    with Cluster(engine.scheduler_address) as cluster:
        yield made_for(cluster, cache, tmp_path)


def made_for(cluster: Cluster, cache: Path, tmp_path: Path) -> Remote:
    image = Image("key", str(cache / "images/key"), "", "cc", "", (), (), 0.0, 0)
    kernel = Kernel(
        arch.load(), image, cache / "roots/r.squashfs", step_subject(load("so-reserve-mem"), 3), Accel("icount", "")
    )
    return cluster.guests(kernel, tmp_path / "logs", threading.Event())


def test_every_cell_comes_once(remote: Remote) -> None:
    assert [c.case for c in remote.run(CASES, "tar")] == [c.nodeid for c in CASES]


def test_a_cell_comes_before_the_group_ends(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "waits", True)
    cells = remote.run(CASES, "tar")
    assert next(cells).case == CASES[0].nodeid
    assert not Made.ended.is_set()
    cells.close()
    assert Made.ended.wait(10), "whoever stops reading ends the guest"


def test_all_of_it_can_be_stopped(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "waits", True)
    cells = remote.run(CASES, "tar")
    next(cells)
    remote.stopping.set()
    assert list(cells) == []
    assert Made.ended.wait(10)


def test_a_console_comes_along(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "console", "BUG: it died")
    cell = next(remote.run(CASES, "tar"))
    assert Path(cell.console).read_text() == "BUG: it died"
    assert Path(cell.console).parent == remote.logs


def test_a_boot_says_how_long_it_took_or_why_it_failed(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remote.boot(CASES) == 1.5
    log = tmp_path / "boot.console"
    log.write_text("Kernel panic")

    def fails() -> float:
        raise StepFailed("NO_BOOT", "it panicked", log)

    monkeypatch.setattr(Made, "boots", staticmethod(fails))
    with pytest.raises(StepFailed, match="it panicked") as failed:
        remote.boot(CASES)
    assert failed.value.verdict == "NO_BOOT"
    assert failed.value.log and failed.value.log.parent == remote.logs
    assert failed.value.log.read_text() == "Kernel panic"


def test_another_checkout_is_told(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "version", lambda: "perpatch 0")
    with pytest.raises(Mistake, match="not perpatch 0: give it the same checkout"):
        list(remote.run(CASES, "tar"))


def test_what_goes_wrong_on_a_worker_is_the_hosts_doing(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Made, "boots", staticmethod(fails))
    with pytest.raises(Infra, match=r"a worker failed: OSError: .*No space left"):
        remote.boot(CASES)


def test_a_worker_gets_what_it_lacks(remote: Remote, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "images/key").mkdir(parents=True)
    (cache / "roots").mkdir()
    (cache / "images/key/kernel").write_bytes(b"bzImage")
    for name in ("r.squashfs", "r.sha256"):
        (cache / "roots" / name).write_bytes(name.encode())
    GOT.clear()
    monkeypatch.setattr(spread, "put", note)
    monkeypatch.setattr(worker, "_image", lambda name: IMAGE if GOT else None)
    assert len(list(remote.run(CASES, "tar"))) == 3
    assert GOT == {"images/key/kernel": b"bzImage"}, "it has the root"


def test_a_worker_that_keeps_nothing_is_told(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_image", lambda name: None)
    with pytest.raises(Infra, match=r"lacks what it was given: images/key"):
        list(remote.run(CASES, "tar"))


def test_what_is_put_is_found(cache: Path) -> None:
    name = "roots/r.squashfs"
    assert worker.lacks((name, "images/key")) == (name, "images/key")
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of abc (FIPS 180-2, appendix B.1)
    worker.put({"roots/r.sha256": sha.encode(), name: b"abc"})
    assert worker.lacks((name, "images/key")) == ("images/key",)
    worker.put({name: b"abd"})
    assert name in worker.lacks((name,)), "damaged"


def test_workers_that_die_under_a_group_are_told(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(future: object) -> None:
        raise KilledWorker("task", SimpleNamespace(address="tcp://there:1"), 3)

    monkeypatch.setattr(spread, "_result", killed)
    monkeypatch.setattr(Cluster, "submit", lambda self, order, news: news.put(None))
    cells = list(remote.run(CASES, "tar"))
    assert [(c.verdict, c.case) for c in cells] == [(Verdict.INFRA, c.nodeid) for c in CASES]
    assert "4 workers in a row ended in the middle of it, the last at tcp://there:1" in cells[0].reason


@pytest.mark.parametrize("why", [OSError("timed out"), TimeoutError(), ValueError("unknown scheme")])
def test_an_address_where_nothing_answers(why: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise why

    monkeypatch.setattr(spread, "Client", fails)  # a real one that fails takes the engine's loop along
    with pytest.raises(Mistake, match=r"--scheduler tcp://x:1: does not answer: .*dask scheduler"):
        Cluster("tcp://x:1")


def test_a_scheduler_without_workers(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "_ask_threads", lambda self: 0)
    with pytest.raises(Mistake, match="has no workers: start one with 'dask worker"):
        Cluster(remote.cluster.address)


def test_workers_that_all_leave(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.cluster.check()
    monkeypatch.setattr(Cluster, "_ask_threads", lambda self: 0)
    remote.cluster.check()  # one may come back
    monkeypatch.setattr(spread, "NO_WORKER_SECONDS", 0)
    with pytest.raises(Infra, match="no worker there for 0 s"):
        remote.cluster.check()


def test_a_scheduler_that_goes_away(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    futures = list[Future]()
    submit = Cluster.submit

    def kept(self: Cluster, *what: object) -> Future:
        futures.append(submit(self, *what))
        return futures[-1]

    monkeypatch.setattr(Cluster, "submit", kept)
    monkeypatch.setattr(Made, "waits", True)
    cells = remote.run(CASES, "tar")
    assert next(cells).case == CASES[0].nodeid
    futures[0].cancel()  # what the client does to its futures when it has lost the scheduler
    with pytest.raises(Infra, match="the scheduler went away"):
        list(cells)
