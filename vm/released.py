"""Stage 3 for kernels that were built elsewhere: a distribution's package, this host's kernel, or a bzImage.

Each becomes an Image whose directory holds, beside the kernel, what a warm guest needs where drivers are modules: a
small initramfs that mounts our root, and a squashfs with the modules that cases may ask for.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from vm import apt
from vm.arch import Arch
from vm.errors import Infra, Mistake, StepFailed
from vm.image import Image, cached
from vm.paths import VM, cache, locked

STORE = "kernels"
# What has to be there before the root is: the drive, its file system, the port; and what each of these needs.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "squashfs", "virtio_console")
# Directories (and drivers) whose modules a case may make the kernel load.
CASE_MODULES = ("net", "crypto", "lib", "arch/x86/crypto", "drivers/virtio", "drivers/block", "drivers/char",
                "drivers/net/veth.ko", "drivers/net/tun.ko", "drivers/net/dummy.ko", "fs/squashfs")  # fmt: skip

Say = Callable[[str], None]


def find(word: str, arch: Arch, say: Say) -> Image:
    """The kernel that a user named: debian:6.1, a linux-image-* package, host, or the path of a bzImage.

    Mistake says what was looked for and what there is; StepFailed (NO_BOOT) where drivers for the guest lack.
    """
    package = f"^{re.escape(word)}$" if word.startswith("linux-image-") else _pattern(word)
    if package:
        return _of_package(word, package, arch, say)
    path = Path(f"/boot/vmlinuz-{platform.release()}") if word == "host" else Path(word).expanduser()
    if not path.is_file():
        have = ", ".join(sorted(str(p) for p in Path("/boot").glob("vmlinuz-*"))) or "no /boot/vmlinuz-*"
        raise Mistake(
            f"--kernel {word}: no file {path} (this host has {have}): give debian:VERSION, a linux-image package, "
            "the path of a bzImage, or SERIES@STEP"
        )
    release, _ = banner(path)
    return _lay_out(path, release, _modules_near(path, release), _config_near(path, release), arch)


def slug(word: str) -> str:
    """A --kernel word as the name of a file or directory."""
    return re.sub(r"[^\w.+-]+", "-", word).strip("-")


def _pattern(word: str) -> str:
    """debian:6.1 as a regular expression for packages; "" where the word is no such thing."""
    match = re.fullmatch(r"debian:(\d+(?:\.\d+)*)", word)
    return rf"^linux-image-{re.escape(match[1])}([-.+][-.+0-9a-z]*)?-amd64$" if match else ""


def banner(kernel: Path) -> tuple[str, str]:
    """A bzImage's release (6.1.0-50-amd64) and upstream version (6.1.170), as its header has them.

    Mistake where it is no bzImage (Documentation/arch/x86/boot.rst, kernel_version).
    """
    data = kernel.read_bytes()
    if data[0x202:0x206] != b"HdrS":
        raise Mistake(f"--kernel {kernel}: not a bzImage: give arch/x86/boot/bzImage or /boot/vmlinuz-*")
    at = int.from_bytes(data[0x20E:0x210], "little") + 0x200
    text = data[at : data.index(b"\0", at)].decode(errors="replace")
    debian = re.search(r"Debian (\d+\.\d+(?:\.\d+)?)", text)
    version = debian or re.match(r"(\d+\.\d+(?:\.\d+)?)", text)
    if not version:
        raise Mistake(f"--kernel {kernel}: its header names no version: {text[:60]!r}")
    return text.split()[0], version[1]


def _of_package(word: str, package: str, arch: Arch, say: Say) -> Image:
    store = cache() / STORE
    record = store / f"{slug(word)}-{_recipe(arch)}.json"
    with locked(store / "lock"):
        if record.is_file():
            known = cached(json.loads(record.read_text())["key"], STORE)
            if known:
                return known
        with tempfile.TemporaryDirectory(dir=store) as scratch:
            top = Path(scratch)
            _unpack(word, package, top, say)
            kernels = [*top.glob("boot/vmlinuz-*"), *top.glob("usr/lib/modules/*/vmlinuz")]
            if not kernels:
                raise Mistake(f"--kernel {word}: its packages hold no kernel: name a linux-image package that does")
            release, _ = banner(kernels[0])
            image = _lay_out(
                kernels[0], release, _modules_near(kernels[0], release), _config_near(kernels[0], release), arch
            )
        record.write_text(json.dumps({"key": image.key}))
        return image


def _unpack(word: str, package: str, top: Path, say: Say) -> None:
    """Fetch the newest matching linux-image package, and where it is only a metapackage (7.x) its parts; unpack all."""
    # A pattern says which version is meant only to people; the table of suites wants a package's name.
    plain = package.replace("\\", "").lstrip("^")
    tried: list[str] = []
    there: set[str] = set()
    for suite in apt.suites_of(plain):
        try:
            with apt.Archive(suite, top, lambda text: say(f"{word}: {text}")) as archive:
                fits = archive.names(package)
                fits = [n for n in fits if not re.search(r"-(cloud|rt|dbg|unsigned)", n)]
                if not fits:
                    have = archive.names("^linux-image-[0-9].*[0-9]-amd64$")
                    there.update(have[-3:])
                    tried.append(suite)
                    continue
                tail = fits[-1].removeprefix("linux-image-")
                say(f"{word}: downloading {fits[-1]}")
                parts = archive.names(f"^linux-(image|base|binary|modules)-{re.escape(tail)}$")
                for deb in [archive.download(part, top) for part in parts]:
                    subprocess.run(["dpkg-deb", "-x", str(deb), str(top)], check=True, stdin=subprocess.DEVNULL)
                    deb.unlink()
                return
        except apt.Unavailable as e:
            tried.append(f"{suite}: {e}")
    names = ", ".join(sorted(there)) or "no linux-image-*-amd64"
    raise Mistake(f"--kernel {word}: no such package in {', '.join(tried)}: there is {names}: name one of these")


def _modules_near(kernel: Path, release: str) -> Path | None:
    """The directory of a kernel's modules: in the tree that the kernel lies in, else this host's; None without any."""
    tops = [kernel.parent, kernel.parent.parent / "lib/modules" / release, Path("/lib/modules") / release]
    tops.insert(1, kernel.parent.parent / "usr/lib/modules" / release)
    return next((top for top in tops if (top / "kernel").is_dir()), None)


def _config_near(kernel: Path, release: str) -> Path | None:
    places = [kernel.parent / f"config-{release}", kernel.parent / "config", Path(f"/boot/config-{release}")]
    return next((p for p in places if p.is_file()), None)


def _recipe(arch: Arch) -> str:
    """What the directory of an Image is made by; another recipe is another Image."""
    said = f"{BOOT_MODULES} {CASE_MODULES} {arch.name}".encode() + (VM / "inside/initramfs").read_bytes()
    return hashlib.sha256(said).hexdigest()[:12]


def _lay_out(kernel: Path, release: str, modules: Path | None, config: Path | None, arch: Arch) -> Image:
    """An Image in the cache out of a kernel and its modules."""
    digest = hashlib.sha256(kernel.read_bytes()).hexdigest()
    recipe = hashlib.sha256(f"{digest} {_recipe(arch)}".encode())
    for name in ("modules.order", "modules.builtin"):
        recipe.update((modules / name).read_bytes() if modules and (modules / name).is_file() else b"-")
    key = recipe.hexdigest()[:24]
    found = cached(key, STORE)
    if found:
        return found
    store = cache() / STORE
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as scratch:
        half = Path(scratch) / key
        half.mkdir()
        shutil.copy(kernel, half / "kernel")
        (half / "config").write_bytes(config.read_bytes() if config else b"")
        if modules:
            _pack(modules, release, half, Path(scratch))
        image = Image(
            key=key,
            dir=str(store / key),
            sha256=digest,
            compiler="",
            config_sha256=hashlib.sha256((half / "config").read_bytes()).hexdigest(),
            warnings=(),
            new_warnings=(),
            seconds=0.0,
            objects=0,
            release=release,
            version=banner(kernel)[1],
        )
        (half / "image.json").write_text(json.dumps(asdict(image), indent=1))
        shutil.rmtree(store / key, ignore_errors=True)
        half.rename(store / key)
    return image


def _pack(modules: Path, release: str, half: Path, scratch: Path) -> None:
    """modules.squashfs with what cases may load, and an initramfs with what mounting takes, into half."""
    top = scratch / "modules" / "lib/modules" / release
    (top / "kernel").mkdir(parents=True)
    for module in modules.glob("kernel/**/*.ko*"):
        name = str(module.relative_to(modules / "kernel"))
        if name.startswith(CASE_MODULES):
            target = top / "kernel" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _plain(module, target)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        if (modules / name).is_file():
            shutil.copy(modules / name, top)
    _tool("depmod", "-b", str(scratch / "modules"), release)
    _tool(
        "mksquashfs",
        str(top.parent),
        str(half / "modules.squashfs"),
        "-comp",
        "lz4",
        "-all-root",
        "-quiet",
        "-no-progress",
    )
    early = scratch / "early"
    for sub in ("bin", "dev", "modules", "root"):
        (early / sub).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if not busybox:
        raise Infra("busybox: not installed: 'perpatch doctor' says which package has it")
    shutil.copy(busybox, early / "bin/busybox")
    shutil.copy(VM / "inside/initramfs", early / "init")
    (early / "init").chmod(0o755)
    for n, file in enumerate(_needed(top)):
        shutil.copy(file, early / "modules" / f"{n:02}-{file.name}")
    names = "\n".join(str(p.relative_to(early)) for p in sorted(early.rglob("*")))
    with (half / "initramfs").open("wb") as out:
        done = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=early, input=names.encode(), stdout=out
        )
    if done.returncode:
        raise Infra(f"initramfs: cpio exited {done.returncode}")


def _plain(module: Path, target: Path) -> None:
    """A module as busybox's insmod takes it: .ko.xz unpacked; others as they are."""
    if module.suffix == ".xz":
        target.with_suffix("").write_bytes(lzma.decompress(module.read_bytes()))
    elif module.suffix == ".ko":
        shutil.copy(module, target)
    else:
        raise StepFailed("NO_BOOT", f"{module.name}: modules packed with {module.suffix} are not known: .ko or .ko.xz")


def _needed(top: Path) -> Iterator[Path]:
    """Files of BOOT_MODULES and what they depend on, in the order to load them; what is built in needs no file.

    StepFailed where the kernel has a driver neither way.
    """
    depends: dict[str, list[str]] = {}
    for line in (top / "modules.dep").read_text().splitlines():
        file, _, needs = line.partition(":")
        depends[Path(file).stem.replace("-", "_")] = [*reversed(needs.split()), file]
    builtin = {Path(line).stem.replace("-", "_") for line in (top / "modules.builtin").read_text().splitlines()}
    seen: list[str] = []
    for name in BOOT_MODULES:
        if name in depends:
            seen += [file for file in depends[name] if file not in seen]
        elif name not in builtin:
            raise StepFailed("NO_BOOT", f"{top.name}: no {name}: neither built in nor a module: a guest cannot boot it")
    return (top / file for file in seen)


def _tool(*command: str) -> None:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | {"PATH": path}
        )
    except FileNotFoundError:
        raise Infra(f"{command[0]}: not installed: 'perpatch doctor' says which package has it") from None
    if done.returncode:
        raise Infra(f"{command[0]} failed: {done.stderr.strip()}")
