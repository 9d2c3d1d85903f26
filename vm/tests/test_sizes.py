"""Structs and functions are measured in objects that the compiler made a moment ago."""

import subprocess
from pathlib import Path

import pytest

from vm.errors import Infra
from vm.image import Image
from vm.sizes import Layout, Sizes, functions, growth, layout, table

SOURCE = """
struct holey { char c; long l; char d; int i; };
struct tight { long l; int i; int j; };
long f(struct holey *h, struct tight *t) { return h->l + t->l; }
"""


def compiled(where: Path, name: str, source: str) -> Path:
    (where / f"{name}.c").write_text(source)
    subprocess.run(["gcc", "-g", "-c", "-o", str(where / name), str(where / f"{name}.c")], check=True)
    return where / name


def image(where: Path) -> Image:
    return Image("key", str(where), "", "", "", (), (), 0.0, 0)


def test_layout_counts_holes(tmp_path: Path) -> None:
    object_ = compiled(tmp_path, "a.o", SOURCE)
    assert layout(object_, "holey") == Layout(24, 2, 10)
    assert layout(object_, "tight") == Layout(16, 0, 0)


def test_a_struct_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Infra, match="no struct sock"):
        layout(compiled(tmp_path, "a.o", SOURCE), "sock")


def test_functions_and_their_growth(tmp_path: Path) -> None:
    compiled(tmp_path, "vmlinux", "int f(int x) { return x; } int gone(void) { return 1; }")
    before = functions(image(tmp_path))
    compiled(tmp_path, "vmlinux", "int f(int x) { return x; } int come(int x) { return x * x * x + 7; }")
    after = functions(image(tmp_path))
    assert before["f"] == after["f"]
    changed = growth(Sizes("base", {}, before), Sizes("1/1", {}, after))
    assert changed == {"come": after["come"], "gone": -before["gone"]}


def test_an_image_without_vmlinux_is_infra(tmp_path: Path) -> None:
    with pytest.raises(Infra, match="vmlinux"):
        functions(image(tmp_path))


def test_the_table_sums_up_what_it_does_not_show() -> None:
    before = Sizes("base", {"sock": Layout(760, 3, 7)}, {})
    after = Sizes("1/1", {}, {f"f{n}": n for n in range(1, 15)})
    text = table([before, after])
    assert "760" in text and "3 (7 B)" in text and "not measured" in text
    assert "+105 +0: +105 bytes" in text
    assert "    +14  f14" in text and "     +3  2 more" in text
