"""Our own series and breaks against the kernel's own checker; needs the tree that the builds left behind."""

import subprocess
from pathlib import Path

import pytest

from vm import arch, series, source
from vm.image import Builder
from vm.paths import PATCHES

pytestmark = pytest.mark.guest


@pytest.fixture(scope="module")
def checkpatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    s = series.load("so-reserve-mem")
    builder = Builder(source.find(s.base, None, None, None, print), s, arch.load(), tmp_path_factory.mktemp("logs"))
    script = builder.tree.path / "scripts/checkpatch.pl"
    if not script.is_file():
        builder.tree.go(0)
    return script


# A list of names that is expanded twice, and new files that no maintainer has.
SCHEMATA = ("--ignore", "COMPLEX_MACRO,FILE_PATH_CHANGES", str(PATCHES / "mutants/so-reserve-mem/schemata.patch"))
OURS = [(str(patch),) for patch in sorted((PATCHES / "so-reserve-mem").glob("*.patch"))]


@pytest.mark.parametrize("words", [*OURS, SCHEMATA], ids=lambda words: Path(words[-1]).name[:8])
def test_checkpatch_is_content(checkpatch: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["perl", str(checkpatch), "--no-signoff", "--terse", *words],
        cwd=checkpatch.parent.parent,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    complaints = [line for line in done.stdout.splitlines() if ": ERROR: " in line or ": WARNING: " in line]
    assert complaints == []
    # For the license of a new file it asks a script of the kernel, which wants a Python library that need not be here.
    assert done.stderr == "" or "No module named 'ply'" in done.stderr
