"""What a user may choose about cases: pytest options, carried by the environment, told to the guest with selftests/.

The environment, because `perpatch run` only collects with pytest: what is chosen there has to outlive that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets

import pytest

from vm.errors import Mistake

WHERE = "selftests/data/options.json"  # in the guest
_VARIABLES = {"model_seed": "PERPATCH_MODEL_SEED", "model_ops": "PERPATCH_MODEL_OPS"}


def _seed(word: str) -> str:
    return str(secrets.randbelow(1 << 31)) if word == "random" else _number(word)


def _number(word: str) -> str:
    if not word.isdecimal() or int(word) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{word!r} is no number")
    return word


def add_options(parser: pytest.Parser) -> None:
    """Declare the options to pytest."""
    group = parser.getgroup("perpatch")
    group.addoption("--model-seed", type=_seed, metavar="N", help="seed of the random sequences, or 'random'")
    group.addoption("--model-ops", type=_number, metavar="N", help="how many operations they come to")


def keep(config: pytest.Config) -> None:
    """Put what was given on pytest's command line where options() finds it, also after pytest has ended."""
    for name, variable in _VARIABLES.items():
        if (value := config.getoption(name)) is not None:
            os.environ[variable] = value


def words(args: list[str]) -> list[str]:
    """What has to be said again for a case to do the same: what was chosen, and -m, without which some are left out."""
    chosen = [f"--{name.replace('_', '-')}={value}" for name, value in json.loads(options()).items()]
    marks = [pair for pair in itertools.pairwise(args) if pair[0] == "-m"]
    return [*chosen, *(word for pair in marks for word in pair)]


def options(mutant: str = "") -> str:
    """JSON for the guest; Mistake where a variable holds something that its option would not take.

    mutant: the fault that is to be active, as the kernel calls it; "" where the kernel has no such choice.
    """
    found: dict[str, int | str] = {"mutant": mutant} if mutant else {}
    for name, variable in _VARIABLES.items():
        if word := os.environ.get(variable):
            try:
                found[name] = int(_seed(word) if name == "model_seed" else _number(word))
            except argparse.ArgumentTypeError as e:
                raise Mistake(f"{variable}: {e}") from None
    return json.dumps(found)
