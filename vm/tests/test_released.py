"""Kernels that were built elsewhere: what they are called, what is said where there is none, what a guest loads."""

import re
from pathlib import Path

import pytest

from vm import apt, arch, released
from vm.cases import Case, groups
from vm.errors import Mistake, StepFailed
from vm.flavour import load as flavour
from vm.guest import machine_for

A = arch.load("x86_64")


def bzimage(path: Path, text: str) -> Path:
    data = bytearray(0x1000)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = (0x400).to_bytes(2, "little")
    data[0x600 : 0x600 + len(text)] = text.encode()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("text", "release", "version"),
    [
        ("6.1.0-50-amd64 (x@y) #1 SMP Debian 6.1.170-1 (2026-09-01)", "6.1.0-50-amd64", "6.1.170"),
        ("7.3.4+deb13-amd64 (x@y) #1 SMP Debian 7.3.4-1~bpo13+1", "7.3.4+deb13-amd64", "7.3.4"),
        ("6.19.0-rc3 (u@h) #2 SMP", "6.19.0-rc3", "6.19.0"),
    ],
)
def test_a_bzimage_says_which_kernel_it_is(tmp_path: Path, text: str, release: str, version: str) -> None:
    assert released.banner(bzimage(tmp_path / "k", text)) == (release, version)


def test_what_is_no_kernel_is_named(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"\x7fELF" + bytes(2000))
    with pytest.raises(Mistake, match="not a bzImage"):
        released.banner(tmp_path / "k")
    with pytest.raises(Mistake, match=r"no file .*nowhere.*give debian:VERSION"):
        released.find("/nowhere/bzImage", A, print)


@pytest.mark.parametrize(
    ("word", "package", "fits"),
    [
        ("debian:6.1", "linux-image-6.1.0-57-amd64", True),
        ("debian:6.1", "linux-image-6.12.118+deb13-amd64", False),
        ("debian:6.1", "linux-image-6.16.3+deb13-amd64", False),
        ("debian:7", "linux-image-7.3.4+deb13-amd64", True),
        ("debian:7.3", "linux-image-7.3-amd64", True),
        ("debian:6.1", "linux-image-6.1.0-57-amd64-dbg", False),
    ],
)
def test_a_version_means_its_packages(word: str, package: str, fits: bool) -> None:
    assert bool(re.search(released._pattern(word), package)) is fits


def test_the_newest_is_the_last_one() -> None:
    names = ["linux-image-6.1.0-9-amd64", "linux-image-6.1.0-57-amd64", "linux-image-6.1.0-10-amd64"]
    assert sorted(names, key=apt.version_key)[-1] == "linux-image-6.1.0-57-amd64"


def test_a_package_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Archive:
        def __init__(self, suite: str, near: Path, say: object) -> None:
            self.suite = suite

        def __enter__(self) -> "Archive":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def names(self, pattern: str) -> list[str]:
            return [n for n in ["linux-image-7.3.4+deb13-amd64"] if re.search(pattern, n)]

    monkeypatch.setenv("PERPATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(apt, "Archive", Archive)
    with pytest.raises(Mistake, match=r"debian:9.9: no such package in .*: there is linux-image-7.3.4\+deb13-amd64"):
        released.find("debian:9.9", A, print)


def test_modules_are_loaded_before_what_needs_them(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "kernel/virtio_blk.ko: kernel/virtio_ring.ko kernel/virtio.ko\n"
        "kernel/virtio_pci.ko: kernel/virtio_ring.ko kernel/virtio.ko\nkernel/virtio_ring.ko:\nkernel/virtio.ko:\n"
    )
    (tmp_path / "modules.builtin").write_text("kernel/squashfs.ko\nkernel/virtio_console.ko\n")
    assert [f.name for f in released._needed(tmp_path)] == [
        "virtio.ko",
        "virtio_ring.ko",
        "virtio_pci.ko",
        "virtio_blk.ko",
    ]
    (tmp_path / "modules.builtin").write_text("kernel/squashfs.ko\n")
    with pytest.raises(StepFailed, match="no virtio_console: neither built in nor a module"):
        list(released._needed(tmp_path))


def test_a_case_gets_the_machine_that_it_asks_for() -> None:
    def of(case: Case, functional: str = "icount", debug: str = "") -> tuple[str, int, str]:
        m = machine_for(case, A, functional, flavour(debug))
        return m.accel, m.cpus, m.append

    plain, race = Case("x::plain", ""), Case("x::race", "", cpus=2)
    figure, booted = Case("x::figure", "", virtual_time=True), Case("x::booted", "", boot="cgroup.memory=nosocket")
    assert of(plain) == ("icount", 1, "")
    assert of(plain, "kvm") == ("kvm", 1, "")
    assert of(race) == ("tcg", 2, "")
    assert of(race, "kvm") == ("kvm", 2, "")
    assert of(figure, "kvm") == ("icount", 1, "")
    assert of(booted) == ("icount", 1, "cgroup.memory=nosocket")
    assert of(plain, debug="kcsan") == ("tcg", 2, flavour("kcsan").append)
    assert of(figure, debug="kasan") == ("icount", 1, "slub_debug=-")
    assert len(groups([plain, race, figure, booted])) == 4


def test_a_case_gets_the_memory_that_it_asks_for() -> None:
    plain, big = Case("x::plain", ""), Case("x::big", "", memory=3072)
    machines = [machine_for(case, A, "icount", flavour("")) for case in (plain, big)]
    assert [m.memory for m in machines] == [1024, 3072]
    assert len({m.name for m in machines}) == 2  # or they would write into each other's logs
    assert machine_for(plain, A, "icount", flavour("kasan")).memory == 2048
    assert len(groups([plain, big])) == 2
