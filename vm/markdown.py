"""Text from a case, a patch or a guest, as Markdown shows it and does not act on it."""

from __future__ import annotations

import re

# An underscore within a word is one: names that people search for stay as they are.
_ACTIVE = re.compile(r"[|<>*\\]|(?<![^\W_])_|_(?![^\W_])")


def plain(text: str) -> str:
    """In one line, also inside a table, without what XML and Markdown have no way to write."""
    return _ACTIVE.sub(r"\\\g<0>", " ".join(printable(text).split()))


def printable(text: str) -> str:
    """Text without the characters that XML 1.0 has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "?", text)
