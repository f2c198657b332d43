"""The rows of the operations in the `micro` suite, the same for every contestant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

VALUE: Final = b"x" * 100
COLUMN: Final = "c"
SCANNED: Final = 100
"""A scan reads this many rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are loaded before the race, and new ones. ``loaded`` is `SCANNED` or more."""

    loaded: int

    def all_loaded(self) -> list[bytes]:
        """The rows in the order of their keys."""
        return [self.read(number) for number in range(self.loaded)]

    def read(self, number: int) -> bytes:
        """The row of the read operation ``number``."""
        return b"row:%09d" % (number % self.loaded)

    def read_pair(self, number: int) -> tuple[bytes, bytes]:
        """The rows that a 2r2w transaction reads."""
        return self.read(number), self.read(number + 7)

    def scan_from(self, number: int) -> bytes:
        """A start of a scan that finds `SCANNED` loaded rows."""
        return b"row:%09d" % (number % (self.loaded - SCANNED + 1))

    def write(self, number: int) -> bytes:
        """The new row of the write operation ``number``."""
        return b"new:%d" % number

    def write_pair(self, number: int) -> tuple[bytes, bytes]:
        """The new rows that a 2r2w transaction writes."""
        return b"new:%d" % number, b"also:%d" % number
