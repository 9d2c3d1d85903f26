from dataclasses import replace

from vm import arch, image
from vm.series import Patch, Series
from vm.source import Source

A = arch.load("x86_64")
SRC = Source("/r", "c", "t", "v5.10")
S = Series("s", "t", (Patch("one", "1", b"p1"), Patch("two", "2", b"p2")))


def test_a_requested_symbol_that_did_not_survive_is_named() -> None:
    config = "CONFIG_NET=y\n# CONFIG_VETH is not set\nCONFIG_HZ=100\n"
    wanted = "# why\nCONFIG_NET=y\nCONFIG_VETH=y\nCONFIG_HZ=250\nCONFIG_SQUASHFS=y\n# CONFIG_NET is not set\n"
    lost = image.missing(wanted, config)
    assert lost == ["CONFIG_VETH=y", "CONFIG_HZ=250", "CONFIG_SQUASHFS=y", "# CONFIG_NET is not set"]
    assert image.missing("CONFIG_NET=y\n# CONFIG_VETH is not set\nCONFIG_FOO=n\n", config) == []


def test_the_key_holds_all_that_an_image_is_made_of() -> None:
    def key(src: Source = SRC, s: Series = S, step: int = 2, cc: str = "gcc 12") -> str:
        return image.key_of(src, s, step, A, cc)

    changed = [
        key(src=replace(SRC, tree="u")),
        key(s=replace(S, patches=(S.patches[0], Patch("two", "2", b"p2 ")))),
        key(s=replace(S, fragment="CONFIG_X=y")),
        key(step=1),
        key(cc="gcc 13"),
    ]
    assert key() not in changed
    assert len(set(changed)) == len(changed)


def test_a_later_patch_and_a_new_title_do_not_change_an_earlier_image() -> None:
    other = replace(S, title="u", patches=(S.patches[0], Patch("x", "x", b"other")))
    assert image.key_of(SRC, S, 1, A, "gcc") == image.key_of(SRC, other, 1, A, "gcc")
