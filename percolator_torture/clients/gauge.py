"""Counters of a client process that its parent can read, also after the process was killed."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from percolator_torture.faults.plan import Kind

OUTCOMES: Final = ("ok", "fail", "unknown")
FIELDS: Final = ("done", *OUTCOMES, *(kind.value for kind in Kind))
"""Finished transactions, their outcomes, and faults by kind."""

_NUMBER: Final = struct.Struct("=Q")
_PLACES: Final = {name: place * _NUMBER.size for place, name in enumerate(FIELDS)}
_SIZE: Final = len(FIELDS) * _NUMBER.size


class Gauge:
    """A file of counters, mapped into the memory of the client process and its parent.

    >>> gauge = Gauge(path)
    >>> gauge["done"] += 1
    """

    def __init__(self, path: Path) -> None:
        """Create the file if it does not exist."""
        with path.open("a+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def __getitem__(self, field: str) -> int:
        value: int = _NUMBER.unpack_from(self._map, _PLACES[field])[0]
        return value

    def __setitem__(self, field: str, value: int) -> None:
        _NUMBER.pack_into(self._map, _PLACES[field], value)
