"""Marks: the writer of a value, as text in the store and as an integer in the checker."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ABSENT: Final = 0
FOREIGN: Final = -1
"""Packed marks: of no value, and of a value without a mark, which no recorded transaction wrote."""

NUMBER_BITS: Final = 31
WRITE_BITS: Final = 16
"""A packed mark has 63 bits: these for the transaction's number and the write's, the rest for the process."""

NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
WRITE_MASK: Final = (1 << WRITE_BITS) - 1

_PROCESS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TAGGED: Final = re.compile(rb"([A-Za-z0-9_.-]{1,64}):(\d{1,10}):(\d{1,5})\|")


class Mark(NamedTuple):
    """The writer of a value: the process, the number of its transaction, and the number of the write.

    ``write`` counts the transaction's writes to the cell from 1. A transaction that sets a cell twice writes
    the marks 1 and 2, and other transactions must see only mark 2.
    """

    process: str
    number: int
    write: int = 1

    @property
    def transaction(self) -> str:
        """The id of the transaction."""
        return f"{self.process}:{self.number}"

    def __str__(self) -> str:
        return f"{self.process}:{self.number}:{self.write}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Parse a mark; raises ValueError."""
        process, number, write = text.split(":")
        return cls(process, int(number), int(write))


UNMARKED: Final = Mark("?", 0, 0)
"""Stands for the mark of a value that has none."""


def tag_value(mark: Mark, payload: bytes) -> bytes:
    """Encode a payload with its mark: ``process:number:write|payload``."""
    return b"%s:%d:%d|%b" % (mark.process.encode(), mark.number, mark.write, payload)


def untag_value(value: bytes) -> tuple[Mark, bytes]:
    """Return mark and payload of a stored value; without a mark, `UNMARKED` and the value itself."""
    found = _TAGGED.match(value)
    if found is None:
        return UNMARKED, value
    number, write = int(found[2]), int(found[3])
    if not (0 < number < 1 << NUMBER_BITS and 0 < write < 1 << WRITE_BITS):
        return UNMARKED, value
    return Mark(found[1].decode(), number, write), value[found.end() :]


class Processes:
    """Numbers the names of processes, and packs marks into integers with these numbers."""

    __slots__ = ("_index", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Return the process's number; ValueError if the name is not valid."""
        found = self._index.get(name)
        if found is None:
            check_process(name)
            if len(self.names) >= 1 << (63 - NUMBER_BITS - WRITE_BITS):
                raise ValueError("a history has at most 65535 processes: check parts of it separately")
            found = self._index[name] = len(self.names)
            self.names.append(name)
        return found

    def identity(self, process: str, number: int) -> int:
        """Pack a transaction's id into an integer, above 0."""
        if not 0 < number < 1 << NUMBER_BITS:
            raise ValueError(f"transactions are numbered from 1 to 2**31 - 1, not {number}")
        return self.index(process) << NUMBER_BITS | number

    def pack(self, mark: Mark | None) -> int:
        """Pack a mark into an integer: `ABSENT` for None, `FOREIGN` for `UNMARKED`, else above 0."""
        if mark is None:
            return ABSENT
        if mark.write == 0:
            return FOREIGN
        if not 0 < mark.write < 1 << WRITE_BITS:
            raise ValueError(f"a transaction writes a cell 1 to 65535 times, not {mark.write}")
        return self.identity(mark.process, mark.number) << WRITE_BITS | mark.write

    def unpack(self, packed: int) -> Mark | None:
        """Unpack a mark."""
        if packed == ABSENT:
            return None
        if packed == FOREIGN:
            return UNMARKED
        identity = packed >> WRITE_BITS
        number = identity & NUMBER_MASK
        return Mark(self.names[identity >> NUMBER_BITS], number, packed & WRITE_MASK)


def check_process(name: str) -> None:
    """Raise ValueError unless the name is 1 to 64 characters: letters, digits, ``_``, ``.`` or ``-``."""
    if not _PROCESS.fullmatch(name):
        raise ValueError(
            f"a process is named with 1 to 64 letters, digits, '_', '.' or '-', not {name!r}: rename it"
        )
