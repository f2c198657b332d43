"""The values of acknowledgements.

An acknowledgement has the revision that ran and, if the run was traced, the cells that it wrote. That of a
whole row also has the row's *image*: the cells as the run saw them. The next run compares the row with the
image.

::

    acknowledgement   >I1 format   >I4 revision   >I4 written   [>I4 len image   image …]   cells …
    cell              >I1 kind   >I2 len table   >I4 len row   >I4 len column   table … row … column …
    image             (>I4 len column   >I4 len value, or 0xFFFFFFFF for null   column … value …) …

Format 1 has no image, format 2 has one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Final, TypeAlias

FIRST_REVISION: Final = 1

MOST_TRACED: Final = 1000
TRACED_BYTES: Final = 1 << 20
"""An acknowledgement names at most this many cells of a run, with this many bytes of names. It only counts
the other cells."""

_HEAD: Final = struct.Struct(">BII")
_CELL: Final = struct.Struct(">BHII")
_LENGTH: Final = struct.Struct(">I")
_LENGTHS: Final = struct.Struct(">II")
_UNTRACED: Final = 0xFFFFFFFF
_NULL: Final = 0xFFFFFFFF
_PLAIN: Final = 1
_WITH_IMAGE: Final = 2

NEVER_RAN: Final = 0
"""The revision of an acknowledgement that a rerun has replaced, and of a cell without one."""

Image: TypeAlias = Mapping[bytes, bytes | None]
"""The cells of a row by stored column name; None is a null. A row that does not exist has an empty image."""


def pack_image(image: Image) -> bytes:
    """Pack an image; equal images have equal bytes."""
    parts: list[bytes] = []
    for column in sorted(image):
        value = image[column]
        parts += (_LENGTHS.pack(len(column), _NULL if value is None else len(value)), column, value or b"")
    return b"".join(parts)


def unpack_image(packed: bytes) -> dict[bytes, bytes | None]:
    """Invert `pack_image`."""
    image: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(packed):
        name, value = _LENGTHS.unpack_from(packed, at)
        value_at = at + _LENGTHS.size + name
        at = value_at if value == _NULL else value_at + value
        image[packed[value_at - name : value_at]] = None if value == _NULL else packed[value_at:at]
    return image


@dataclass(frozen=True, slots=True)
class TracedWrite:
    """A cell that a run wrote. ``kind`` is PUT, DELETE or NOTIFY of `percolator_core.layout.records`."""

    table: str
    row: bytes
    column: bytes
    kind: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The value of an acknowledgement.

    ``writes`` is None if the run was not traced. Otherwise ``written`` is the number of cells that it wrote,
    and ``writes`` has the first of them, as limited by `MOST_TRACED` and `TRACED_BYTES`. ``image`` is the
    packed image of the row, None for a single cell.
    """

    revision: int = FIRST_REVISION
    writes: tuple[TracedWrite, ...] | None = None
    written: int = 0
    image: bytes | None = None

    def traced(self, writes: Iterable[TracedWrite]) -> Ack:
        """Return this acknowledgement with the writes of its run."""
        every = tuple(writes)
        sizes = accumulate(_CELL.size + len(one.table) + len(one.row) + len(one.column) for one in every)
        most = sum(1 for _ in takewhile(lambda size: size <= TRACED_BYTES, sizes))
        return replace(self, writes=every[: min(most, MOST_TRACED)], written=len(every))

    def pack(self) -> bytes:
        """Return the value of the cell, empty in the usual case: the first revision, without a trace."""
        if self == Ack():
            return b""
        form = _PLAIN if self.image is None else _WITH_IMAGE
        parts = [_HEAD.pack(form, self.revision, _UNTRACED if self.writes is None else self.written)]
        if self.image is not None:
            parts += (_LENGTH.pack(len(self.image)), self.image)
        for one in self.writes or ():
            table = one.table.encode()
            parts.append(_CELL.pack(one.kind, len(table), len(one.row), len(one.column)))
            parts += (table, one.row, one.column)
        return b"".join(parts)

    @classmethod
    def unpack(cls, value: bytes) -> Ack:
        """Invert `pack`."""
        if not value:
            return cls()
        form, revision, written = _HEAD.unpack_from(value)
        image, at = None, _HEAD.size
        if form == _WITH_IMAGE:
            image_at = at + _LENGTH.size
            at = image_at + _LENGTH.unpack_from(value, at)[0]
            image = value[image_at:at]
        if written == _UNTRACED:
            return cls(revision, image=image)
        writes = []
        while at < len(value):
            kind, table_length, row_length, column_length = _CELL.unpack_from(value, at)
            row_at = at + _CELL.size + table_length
            column_at = row_at + row_length
            table = value[at + _CELL.size : row_at].decode()
            at = column_at + column_length
            writes.append(TracedWrite(table, value[row_at:column_at], value[column_at:at], kind))
        return cls(revision, tuple(writes), written, image)
