"""How long a model is driven, and what is kept of what it finds: over all sequences that hypothesis makes."""

import contextlib
from collections.abc import Callable, Iterator

from selftests.lib.machine import Machine
from selftests.lib.script import Disagreement

SHRINKING = 1500  # operations


class Enough(BaseException):
    """All operations are done, or shrinking has had its share. An Exception would be one more failure to shrink."""


class Harness(BaseException):
    """The case itself failed; there is nothing to shrink. Its cause says how."""


class Campaign:
    """Counts operations and keeps what was found, over all sequences."""

    def __init__(self, machine: Machine, wanted: int, tell: Callable[[str, bool], None]) -> None:
        self.machine, self.wanted, self.tell = machine, wanted, tell
        self.operations = self.since_found = 0
        self.found: list[Disagreement] = []

    def step(self) -> None:
        """One more operation is about to be done."""
        if self.found:
            self.since_found += 1
        if self.since_found > SHRINKING or (self.operations >= self.wanted and not self.found):
            raise Enough
        self.operations += 1

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is found: hypothesis forgets what it cannot repeat."""
        try:
            yield
        except Disagreement as e:
            self.found.append(e)
            raise
        except Exception as e:
            raise Harness from e
