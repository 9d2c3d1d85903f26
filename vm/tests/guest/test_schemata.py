"""The image that has all faults: one is chosen on the kernel's command line, or by the host once it has resumed."""

from pathlib import Path

import pytest

from vm import mutants, series, source
from vm.campaign import Kernels
from vm.cases import Case
from vm.guest import selftests_tar
from vm.kernel import Guests
from vm.reports import Cell
from vm.tests.guest.conftest import tar_of
from vm.verdict import Verdict

pytestmark = pytest.mark.guest
SERIES = series.load("so-reserve-mem")
ROUNDS_UP = "selftests/so_reserve_mem/test_value.py::test_rounds_up[1]"
TELLS = """
from pathlib import Path

def test_tells():
    assert Path("/sys/module/mutant/parameters/active").read_text() == "round_down\\n"
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Guests:
    def find() -> source.Source:
        return source.find(SERIES.base, None, None, None, print)

    made = Kernels(SERIES, find, tmp_path_factory.mktemp("logs"), print).get(mutants.load(SERIES)[0].patch, "")
    assert isinstance(made, Guests)
    return made


def run(kernel: Guests, case: str, tar: str, boot: str = "") -> Cell:
    (cell,) = kernel.run([Case(case, "", boot=boot)], tar)
    return cell


def test_a_fault_is_active_if_chosen(kernel: Guests) -> None:
    assert run(kernel, ROUNDS_UP, selftests_tar(mutants.NONE)).verdict is Verdict.PASS
    assert run(kernel, ROUNDS_UP, selftests_tar("round_down")).verdict is Verdict.FAIL
    assert run(kernel, ROUNDS_UP, selftests_tar(mutants.NONE)).verdict is Verdict.PASS


def test_a_fault_can_be_chosen_on_the_command_line(kernel: Guests) -> None:
    case = "selftests/test_x.py::test_tells"
    assert run(kernel, case, tar_of(TELLS, selftests_tar()), "mutant.active=round_down").verdict is Verdict.PASS
    assert run(kernel, case, tar_of(TELLS, selftests_tar())).verdict is Verdict.FAIL


def test_a_fault_that_the_kernel_does_not_have_is_an_error(kernel: Guests) -> None:
    cell = run(kernel, ROUNDS_UP, selftests_tar("round_dawn"))
    assert (cell.verdict, cell.reason[:7]) == (Verdict.ERROR, "setup: ")
    assert "Invalid argument" in cell.reason


def test_a_kernel_without_faults_is_an_error(kernel: Guests, tmp_path: Path) -> None:
    kernels = Kernels(SERIES, lambda: source.find(SERIES.base, None, None, None, print), tmp_path, print)
    plain = kernels.get(None, "")
    assert isinstance(plain, Guests)
    cell = run(plain, ROUNDS_UP, selftests_tar(mutants.NONE))
    assert (cell.verdict, cell.reason[:7]) == (Verdict.ERROR, "setup: ")
