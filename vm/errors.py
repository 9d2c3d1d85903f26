"""The three ways in which a run ends early, each with its own exit status."""

from __future__ import annotations

from pathlib import Path


class Mistake(Exception):
    """The user asked for something that is not there (exit status 2); the text says what, which, why and the mend."""


class Infra(Exception):
    """The host failed, not the series (exit status 3): disk full, QEMU missing or killed from outside."""


class StepFailed(Exception):
    """A step that has no guest to run cases in; the other steps go on.

    verdict is NO_APPLY, NO_BUILD or NO_BOOT, log the file that shows why (None where there is none).
    """

    def __init__(self, verdict: str, reason: str, log: Path | None = None) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.log = log
