"""How names become keys of the store.

Every key of a tablet starts with the tablet's *tag*, ``{namespace:table:7}``. The braces make it the
hash tag of Redis Cluster, so one tablet lives in one slot and one script may touch all of it.
Namespace and table are percent-encoded, which leaves no brace, colon or glob character in the tag;
a row key follows as it is, at the end of its key, where it cannot be mistaken for anything else.

::

    {ns:table:7}r:<row>      hash   column -> newest version, lock, tombstones
    {ns:table:7}v:<row>      zset   older versions
    {ns:table:7}rows         zset   the row index, in key order
    {ns:table:7}locks        zset   locks by wall time
    {ns:table:7}meta         hash   safe -> the safe point; o<column> -> its observers; version -> its table's
    {ns:table:7}dirty:<obs>  zset   cells to be observed, by the earliest time they may be claimed
    {ns:table:7}tries:<obs>  hash   cell -> failed attempts
    {ns:table:7}failed:<obs> hash   cell -> quarantine record
    {ns:table:7}sync         string written in front of WAIT and WAITAOF, gone after a millisecond
    {ns:table:7}wake         channel a message, the observer's name, calls idle workers
    {ns}format               string the format of the data
    {ns}oracle               hash   last -> newest timestamp; limit -> high-water mark; server -> its run id
                                    and replication id; floor -> where the last failover was
    {ns}catalog              hash   table -> its entry, as JSON: definition, version, the change under way;
                                    0xFF -> how often it was changed, where versions come from
    {ns}chain                hash   digest, observers: of the chain that was activated last; beside -> digests
                                    of those whose workers still run
    {ns}activating           string who activates a chain just now; it expires
    {ns}workers              hash   worker -> its chain's digest, where and since when, as JSON
    {ns}counts               hash   ran:<obs>, failed:<obs>, ... -> how many runs, of all workers so far
    {ns}samples              stream how the namespace was, a look an entry; those that are too old go
    {ns}pins                 zset   pinned snapshots, by timestamp
    {ns}client:<id>          string a client's liveness token; it expires
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

MAX_NAME: Final = 200
"""Longest table, column or namespace name, in bytes of UTF-8."""

_INTERNAL: Final = b"\xff"
"""First byte of internal columns; no UTF-8 text starts with it, so no user column collides."""

MARKER: Final = _INTERNAL
"""The internal column that each row of a typed table has, so that a row of nothing but nulls is one."""


_LENGTHS: Final = struct.Struct(">HH")
"""Of table and column in an encoded address; an acknowledgement's column may be longer than a byte tells."""


class CellAddress(NamedTuple):
    """Where a cell is, as the store has it: the tag of its tablet, the row key, the encoded column."""

    tag: bytes
    row: bytes
    column: bytes

    @property
    def table(self) -> str:
        """The name of the table that the tag belongs to."""
        return unquote(self.tag[1:-1].split(b":")[1])


def encode_column(column: str) -> bytes:
    """A user's column name as it stands in the store: UTF-8, at most 200 bytes.

    Raises ValueError when the name is empty, too long or not text.
    """
    if not isinstance(column, str):
        raise TypeError(f"a column name is str, not {type(column).__name__}")
    encoded = column.encode()
    if not encoded or len(encoded) > MAX_NAME:
        raise ValueError(f"a column name has 1 to {MAX_NAME} bytes, this one has {len(encoded)}")
    return encoded


def decode_column(column: bytes) -> str:
    """The name behind an encoded column; an acknowledgement reads ``observer acknowledges column``."""
    if column == MARKER:
        return "(row)"
    if is_internal(column):
        observer, _, observed = column[1:].partition(_INTERNAL)
        return f"{observer.decode()} acknowledges {observed.decode()}"
    return column.decode()


def is_internal(column: bytes) -> bool:
    """Whether an encoded column is none of the user's."""
    return column.startswith(_INTERNAL)


def acknowledgement(observer: str, column: bytes) -> bytes:
    """The column, beside the observed one, where an observer acknowledges its runs (paper, section 2.4)."""
    return _INTERNAL + observer.encode() + _INTERNAL + column


def acknowledged(column: bytes) -> bytes | None:
    """The encoded column that an acknowledgement is of; None for any other column."""
    if not is_internal(column) or column == MARKER:
        return None
    return column[1:].partition(_INTERNAL)[2]


def encode_primary(address: CellAddress) -> bytes:
    """A cell's address as the locks of a transaction carry it: lengths in front, so nothing can collide.

    It has the tablet's tag and not the table's name: a transaction must be judged at the very place where it
    commits, also by a client whose idea of the table is out of date.
    """
    lengths = _LENGTHS.pack(len(address.tag), len(address.column))
    return lengths + address.tag + address.column + address.row


def decode_primary(encoded: bytes) -> CellAddress:
    """The inverse of `encode_primary`."""
    tag_length, column_length = _LENGTHS.unpack_from(encoded)
    tag_end = _LENGTHS.size + tag_length
    column_end = tag_end + column_length
    return CellAddress(encoded[_LENGTHS.size : tag_end], encoded[column_end:], encoded[tag_end:column_end])


def dirty_key(tag: bytes, observer: str) -> bytes:
    """The key of an observer's dirty cells in the tablet with that tag."""
    return b"%bdirty:%b" % (tag, observer.encode())


def tries_key(tag: bytes, observer: str) -> bytes:
    """The key of the failed attempts at an observer's cells."""
    return b"%btries:%b" % (tag, observer.encode())


def failed_key(tag: bytes, observer: str) -> bytes:
    """The key of an observer's quarantine."""
    return b"%bfailed:%b" % (tag, observer.encode())


def encode_mark(column: bytes, row: bytes) -> bytes:
    """A cell as a member of the dirty index; the Lua side packs the same with ``>I2``."""
    return len(column).to_bytes(2, "big") + column + row


def decode_mark(mark: bytes) -> tuple[bytes, bytes]:
    """``(column, row)`` of a member of the dirty index."""
    end = 2 + int.from_bytes(mark[:2], "big")
    return mark[2:end], mark[end:]


def tablet_of(row: bytes, tablets: int) -> int:
    """The number of the tablet that holds the row, in ``range(tablets)``."""
    return crc32(row) % tablets


def tablet_number(tag: bytes) -> int:
    """The number in a tablet's tag."""
    return int(tag[tag.rindex(b":") + 1 : -1])


class Keyspace:
    """All keys of one namespace."""

    __slots__ = ("_tags", "activating", "catalog", "chain", "format", "namespace", "oracle", "pins", "prefix")

    def __init__(self, namespace: str) -> None:
        """``namespace`` is any text of 1 to 200 bytes; ValueError otherwise."""
        check_name("namespace", namespace)
        self.namespace = namespace
        self.prefix = b"{%b}" % _escape(namespace)
        self.format = self.prefix + b"format"
        self.oracle = self.prefix + b"oracle"
        self.catalog = self.prefix + b"catalog"
        self.chain = self.prefix + b"chain"
        self.activating = self.prefix + b"activating"
        self.pins = self.prefix + b"pins"
        self._tags: dict[tuple[str, int], bytes] = {}

    def tag(self, table: str, tablet: int) -> bytes:
        """The tag that all keys of the tablet start with."""
        tag = self._tags.get((table, tablet))
        if tag is None:
            tag = b"{%b:%b:%d}" % (_escape(self.namespace), _escape(table), tablet)
            self._tags[table, tablet] = tag
        return tag

    def client(self, owner: bytes) -> bytes:
        """The liveness token of a client (paper, section 2.2: the token in the lock service)."""
        return self.prefix + b"client:" + owner


def check_name(what: str, name: str) -> None:
    """Raises TypeError unless ``name`` is str, ValueError unless it has 1 to 200 bytes."""
    if not isinstance(name, str):
        raise TypeError(f"a {what} is str, not {type(name).__name__}")
    if not 1 <= len(name.encode()) <= MAX_NAME:
        raise ValueError(f"a {what} has 1 to {MAX_NAME} bytes, this one has {len(name.encode())}")


def _escape(name: str) -> bytes:
    return quote(name, safe="").encode()
