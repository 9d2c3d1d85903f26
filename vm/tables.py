"""Tables of a TOML file as objects, with one clear line where a row is not well-formed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from vm.errors import Mistake

T = TypeVar("T")


def rows(file: Path, table: str, make: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """What make() makes of each row of a table; Mistake with the file, and the id of the row that it cannot use."""
    try:
        found = tomllib.loads(file.read_text())[table]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as e:
        raise Mistake(f"{file}: {e}") from None
    made = []
    for row in found:
        try:
            made.append(make(dict(row)))
        except (KeyError, TypeError, ValueError) as e:
            raise Mistake(f"{file}: {table} {row.get('id', '?')}: {e}") from None
    return tuple(made)
