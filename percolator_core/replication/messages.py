"""Decode the messages of pgoutput, protocol version 1: "Logical Replication Message Formats" of PostgreSQL.

A transaction comes as a whole, when it has committed in PostgreSQL: its begin, its changes, its commit.
A position in the log of PostgreSQL (LSN) is an int: the number of bytes before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

Fields: TypeAlias = dict[str, str | None]
"""Values of a row by column, in PostgreSQL's text format. None means null. A column that is not known is
missing, such as a large value that an update did not change: PostgreSQL does not send it again."""

FULL: Final = "f"
"""The replica identity of a relation whose old rows are sent with all columns."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_COMMIT: Final = struct.Struct(">xBqqq")


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a table of PostgreSQL.

    ``type_oid`` is the number of the type; for a domain, of its base type. ``is_identity`` is True if old
    rows are sent with this column.
    """

    name: str
    type_oid: int
    is_identity: bool


@dataclass(frozen=True)
class Relation:
    """A table of PostgreSQL, as of a time. ``name`` is ``schema.table``."""

    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @cached_property
    def types(self) -> dict[str, int]:
        """The type of each column, by the column's name."""
        return {one.name: one.type_oid for one in self.columns}


@dataclass(frozen=True, slots=True)
class RowChange:
    """An inserted, updated or deleted row.

    ``old`` has the replica identity of the row before an update or a deletion, if PostgreSQL has sent it.
    ``new`` is the row after the change, None after a deletion.
    """

    relation: Relation
    old: Fields | None
    new: Fields | None
    is_insert: bool = False


@dataclass(frozen=True, slots=True)
class Truncation:
    """All rows of the table were removed."""

    relation: Relation


Change: TypeAlias = RowChange | Truncation


@dataclass(slots=True)
class Commit:
    """A whole transaction of PostgreSQL. ``end`` is the position after its commit; ``size`` is in bytes."""

    end: int
    changes: list[Change]
    size: int


@dataclass(slots=True)
class Decoder:
    """Collects the changes of a transaction until its commit, and knows the relations of the stream.

    Changes of tables that are not ``wanted`` are left out. ``base_types`` returns the type below each domain
    among some types.
    """

    wanted: frozenset[str]
    base_types: Callable[[Iterable[int]], Mapping[int, int]]
    relations: dict[int, Relation] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    size: int = 0
    """The bytes of the changes of the transaction that has no commit yet."""
    is_open: bool = False

    def feed(self, message: bytes) -> Commit | Relation | None:
        """Decode one message; return a transaction that it completes, or the relation that it describes.

        Raises ValueError for a message of another protocol.
        """
        match message[:1]:
            case b"B":
                self.changes, self.size, self.is_open = [], 0, True
            case b"C":
                end = _COMMIT.unpack_from(message)[2]
                commit = Commit(end, self.changes, self.size)
                self.changes, self.size, self.is_open = [], 0, False
                return commit
            case b"R":
                return self._relation(_Reader(message))
            case b"I" | b"U" | b"D":
                reader = _Reader(message)
                relation = self.relations[reader.uint32()]
                if relation.name in self.wanted:
                    self.size += len(message)
                    self.changes.append(_row_change(reader, relation, message[:1]))
            case b"T":
                reader = _Reader(message)
                count, _options = reader.uint32(), reader.letter()
                truncated = [self.relations[reader.uint32()] for _ in range(count)]
                self.changes += [Truncation(one) for one in truncated if one.name in self.wanted]
            case b"O" | b"Y" | b"M":
                pass  # an origin, a type's name, or a message of a program: no change of a row
            case kind:
                raise ValueError(f"pgoutput sent an unknown message {kind!r}: use a supported PostgreSQL")
        return None

    def _relation(self, reader: _Reader) -> Relation:
        oid, schema, table, identity = reader.uint32(), reader.text(), reader.text(), reader.letter()
        found = []
        for _ in range(reader.int16()):
            flags, name, type_oid = reader.letter(), reader.text(), reader.uint32()
            reader.uint32()  # the type's modifier
            found.append((name, type_oid, flags == "\x01"))
        below = self.base_types(type_oid for _, type_oid, _ in found)
        columns = tuple(RelationColumn(name, below.get(kind, kind), sent) for name, kind, sent in found)
        relation = Relation(f"{schema or 'pg_catalog'}.{table}", identity, columns)
        self.relations[oid] = relation
        return relation


def _row_change(reader: _Reader, relation: Relation, kind: bytes) -> RowChange:
    old, new = None, None
    letter = reader.letter()
    if letter in {"K", "O"}:
        old = reader.row(relation)
        if letter == "K":
            # The other columns of this row are sent as null, and are not null.
            old = {one.name: old[one.name] for one in relation.columns if one.is_identity}
        letter = "" if kind == b"D" else reader.letter()
    if letter == "N":
        new = reader.row(relation)
        if old is not None:
            # A large value that the update did not change is in the old row, if that has the column.
            new = old | new
    return RowChange(relation, old, new, kind == b"I")


class _Reader:
    """Reads the parts of a message, after its kind."""

    __slots__ = ("_at", "_message")

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 1

    def int16(self) -> int:
        self._at += 2
        return int(_INT16.unpack_from(self._message, self._at - 2)[0])

    def uint32(self) -> int:
        self._at += 4
        return int(_UINT32.unpack_from(self._message, self._at - 4)[0])

    def letter(self) -> str:
        self._at += 1
        return chr(self._message[self._at - 1])

    def text(self) -> str:
        start = self._at
        end = self._message.index(b"\x00", start)
        self._at = end + 1
        return self._message[start:end].decode("utf-8", "surrogateescape")

    def row(self, relation: Relation) -> Fields:
        """Read a row; its columns have the order of the relation."""
        fields: Fields = {}
        for number in range(self.int16()):
            name = relation.columns[number].name
            match self.letter():
                case "n":
                    fields[name] = None
                case "u":
                    pass  # unchanged, and not sent
                case _:
                    self._at += 4
                    start = self._at
                    self._at += int(_INT32.unpack_from(self._message, start - 4)[0])
                    fields[name] = self._message[start : self._at].decode("utf-8", "surrogateescape")
        return fields
