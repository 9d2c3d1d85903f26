"""A warm guest of the last step, and cases that exist for one test only."""

import base64
import io
import tarfile
import threading
from pathlib import Path

import pytest

from vm import arch, root, series, source
from vm.guest import Warm
from vm.image import Builder
from vm.qemu import Machine


def last_step(logs: Path, accel: str) -> Warm:
    """A guest of the last step."""
    s, data = series.load("so-reserve-mem"), arch.load()
    found = source.find(s.base, None, None, None, print)
    image = Builder(found, s, data, logs).image(len(s.patches))
    return Warm(Machine(data, accel), image, root.image(), logs, threading.Event())


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    return last_step(tmp_path_factory.mktemp("logs"), "icount")


@pytest.fixture(scope="module")
def real_time(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    return last_step(tmp_path_factory.mktemp("logs"), "tcg")


def tar_of(text: str, beside: str = "") -> str:
    """What a guest gets: a file of cases, test_x.py, alone or beside what another such tar holds."""
    data = io.BytesIO(base64.b64decode(beside))
    with tarfile.open(fileobj=data, mode="a" if beside else "w") as tar:
        entry = tarfile.TarInfo("selftests/test_x.py")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return base64.b64encode(data.getvalue()).decode()
