"""The keys of the store.

Every key of a tablet starts with the tablet's *tag*, ``{namespace:table:7}``. The braces make it the hash tag
of Redis Cluster, so one tablet is in one slot and one script may touch all of it. Namespace and table are
percent-encoded, so the tag contains no other brace, colon or glob character. A row key is not encoded: it is
the last part of its key.

::

    {ns:table:7}r:<row>      hash   column -> newest version, lock, tombstones
    {ns:table:7}v:<row>      zset   older versions
    {ns:table:7}rows         zset   the row index, in key order
    {ns:table:7}locks        zset   locks by wall time
    {ns:table:7}meta         hash   safe -> the safe point; o<column> -> its observers, o0xFF -> those of
                                    whole rows; version -> its table's
                                    version, or gone -> the version of the drop; activation -> the number of
                                    the newest activation; base -> the reference of the manifest of its base;
                                    maintainer -> the lease of the base's maintainer
    {ns:table:7}dirty:<obs>  zset   cells to be observed, by the earliest time they may be claimed
    {ns:table:7}tries:<obs>  hash   cell -> failed attempts
    {ns:table:7}failed:<obs> hash   cell -> quarantine record
    {ns:table:7}sync         string written before WAIT and WAITAOF; it expires after a millisecond
    {ns:table:0}attempts     hash   client that runs a task of a load into the table -> the load's driver
    {ns:table:7}wake         channel a message, the observer's name, wakes idle workers
    {ns}format               string the format of the data
    {ns}oracle               hash   last -> newest timestamp; limit -> high-water mark; server -> the run id
                                    and replication id of its server, or the history of an embedded server;
                                    floor -> the timestamp of the last failover; id -> a random name, from the
                                    first publication of a table on
    {ns}catalog              hash   table -> its entry, as JSON: definition, version, the pending schema
                                    change; 0xFF -> the number of changes, from which versions are taken
    {ns}chain                hash   digest, observers: of the chain that was activated last; beside -> digests
                                    of other chains whose workers may go on (during an activation this can
                                    include the chain to activate); observed -> the observers of each column
                                    by table, as JSON, for the tablets of a new table;
                                    activation -> the number of the newest activation;
                                    restoring -> the backup, until its restore has ended
    {ns}activating           string the worker that is activating a chain; it expires
    {ns}workers              hash   worker -> its chain's digest, where and since when, as JSON
    {ns}counts               hash   ran:<obs>, failed:<obs>, ... -> the number of runs of all workers so far
    {ns}samples              stream samples of the namespace's status; old ones are removed
    {ns}pins                 zset   pinned snapshots, by timestamp
    {ns}folders              hash   location and folder of a base that no table has any more -> the time from
                                    which its files may be removed, in µs
    {ns}client:<id>          string a client's liveness token; it expires
    {ns}client:<id>.over     string set when the load of this driver has ended; it expires
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

MAX_NAME: Final = 200
"""Longest table or namespace name, in bytes of UTF-8."""

MAX_COLUMN: Final = 64 << 10
"""Longest column name, in bytes of UTF-8: as long as a row key, because a column may be named after a row."""

_INTERNAL: Final = b"\xff"
"""First byte of internal columns. No UTF-8 text starts with it, so no user column does."""

MARKER: Final = _INTERNAL
"""The internal column that each row of a typed table has: a row of nulls has no other cell.

In a mark, in the name of an acknowledgement, and in the meta hash, it stands for the whole row
(`EVERY_COLUMN`).
"""

EVERY_COLUMN: Final = "*"
"""The name of `MARKER`: ``table.*`` means the whole row."""

SAFE_POINT: Final = b"safe"
VERSION: Final = b"version"
BASE: Final = b"base"
MAINTAINER: Final = b"maintainer"
"""Fields of a tablet's meta hash."""

_TIMESTAMP: Final = struct.Struct(">Q")
_LENGTH: Final = struct.Struct(">I")
"""The length in front of a column. Two bytes are too few for an acknowledgement of a long column."""

_TAG_LENGTH: Final = struct.Struct(">H")


class CellAddress(NamedTuple):
    """The place of a cell in the store: the tag of its tablet, the row key, the encoded column."""

    tag: bytes
    row: bytes
    column: bytes

    @property
    def table(self) -> str:
        """The name of the table in the tag."""
        return unquote(self.tag[1:-1].split(b":")[1])


def encode_column(column: str) -> bytes:
    """Encode a user's column name: UTF-8, at most 64 KiB (`MAX_COLUMN`).

    Raises ValueError if the name is empty or too long, TypeError if it is not str.
    """
    return _checked("column name", column, MAX_COLUMN)


def decode_column(column: bytes) -> str:
    """Return the name of an encoded column; for an acknowledgement, ``observer acknowledges column``.

    `MARKER` has the name `EVERY_COLUMN`.
    """
    if column == MARKER:
        return EVERY_COLUMN
    if is_internal(column):
        observer, _, observed = column[1:].partition(_INTERNAL)
        return f"{observer.decode()} acknowledges {decode_column(observed)}"
    return column.decode()


def is_internal(column: bytes) -> bool:
    """Return True if an encoded column is not a user's column."""
    return column.startswith(_INTERNAL)


def acknowledgement(observer: str, column: bytes) -> bytes:
    """Return the column of the observed row in which an observer acknowledges runs (paper, section 2.4)."""
    return _INTERNAL + observer.encode() + _INTERNAL + column


def view_observer(view: str, part: str) -> str:
    """Return the name of an observer that belongs to a view. Names of users have no ``@`` (`_layout.lua`)."""
    return f"{view}@{part}"


def is_of_view(observer: str) -> bool:
    """Return True for a name that `view_observer` made."""
    return "@" in observer


def acknowledged(column: bytes) -> bytes | None:
    """Return the observed column of an acknowledgement, encoded; None for any other column."""
    if not is_internal(column) or column == MARKER:
        return None
    return column[1:].partition(_INTERNAL)[2]


def encode_primary(address: CellAddress) -> bytes:
    """Pack a cell's address for the locks of a transaction, with lengths in front.

    The address has the tablet's tag, not the table's name: a client with an old definition of the table must
    find the same primary, which decides the outcome of the transaction.
    """
    return _TAG_LENGTH.pack(len(address.tag)) + address.tag + pack_column(address.column) + address.row


def decode_primary(encoded: bytes) -> CellAddress:
    """Invert `encode_primary`."""
    tag_end = _TAG_LENGTH.size + _TAG_LENGTH.unpack_from(encoded)[0]
    column, row = unpack_column(encoded[tag_end:])
    return CellAddress(encoded[_TAG_LENGTH.size : tag_end], row, column)


def row_prefix(tag: bytes) -> bytes:
    """The front of the key of a row's hash; the row key follows."""
    return tag + b"r:"


def history_key(tag: bytes, row: bytes) -> bytes:
    """The key of the older versions of a row's cells."""
    return b"%bv:%b" % (tag, row)


def rows_key(tag: bytes) -> bytes:
    """The key of a tablet's row index."""
    return tag + b"rows"


def locks_key(tag: bytes) -> bytes:
    """The key of a tablet's lock index."""
    return tag + b"locks"


def meta_key(tag: bytes) -> bytes:
    """The key of a tablet's meta hash. `SAFE_POINT`, `VERSION` and `observers_field` name fields of it."""
    return tag + b"meta"


def observers_field(column: bytes) -> bytes:
    """The field of the meta hash with the observers of a column, joined by commas."""
    return b"o" + column


def attempts_key(tag: bytes) -> bytes:
    """The key of the attempts of loads into a table; ``tag`` is that of its tablet 0."""
    return tag + b"attempts"


def dirty_key(tag: bytes, observer: str) -> bytes:
    """The key of an observer's dirty cells in the tablet with that tag."""
    return b"%bdirty:%b" % (tag, observer.encode())


def tries_key(tag: bytes, observer: str) -> bytes:
    """The key of the failed attempts at an observer's cells."""
    return b"%btries:%b" % (tag, observer.encode())


def failed_key(tag: bytes, observer: str) -> bytes:
    """The key of an observer's quarantine."""
    return b"%bfailed:%b" % (tag, observer.encode())


def pack_column(column: bytes) -> bytes:
    """Pack an encoded column with its length in front, as `_layout.lua` does if more bytes follow.

    In a row's sorted set, the older versions of a column start with these bytes.
    """
    return _LENGTH.pack(len(column)) + column


def unpack_column(packed: bytes) -> tuple[bytes, bytes]:
    """Return the encoded column that `pack_column` packed, and the bytes after it."""
    end = _LENGTH.size + _LENGTH.unpack_from(packed)[0]
    return packed[_LENGTH.size : end], packed[end:]


def encode_mark(column: bytes, row: bytes) -> bytes:
    """Pack a cell as a member of the dirty index."""
    return pack_column(column) + row


def decode_mark(mark: bytes) -> tuple[bytes, bytes]:
    """``(column, row)`` of a member of the dirty index."""
    return unpack_column(mark)


def encode_lock_mark(start_ts: int, column: bytes, row: bytes) -> bytes:
    """Pack a member of the lock index: the transaction's start timestamp, and the cell."""
    return _TIMESTAMP.pack(start_ts) + encode_mark(column, row)


def decode_lock_mark(mark: bytes) -> tuple[int, bytes, bytes]:
    """``(start_ts, column, row)`` of a member of the lock index."""
    column, row = unpack_column(mark[_TIMESTAMP.size :])
    return _TIMESTAMP.unpack_from(mark)[0], column, row


def tablet_of(row: bytes, tablets: int) -> int:
    """The number of the tablet that holds the row, in ``range(tablets)``."""
    return crc32(row) % tablets


def tablet_number(tag: bytes) -> int:
    """The number in a tablet's tag."""
    return int(tag[tag.rindex(b":") + 1 : -1])


def woken_tablet(channel: bytes) -> bytes:
    """The tag of the tablet that the wake-up messages of a channel are about."""
    return channel.removesuffix(b"wake")


class Keyspace:
    """All keys of one namespace."""

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
        self.folders = self.prefix + b"folders"
        self.pins = self.prefix + b"pins"
        self.workers = self.prefix + b"workers"
        self.counts = self.prefix + b"counts"
        self.samples = self.prefix + b"samples"
        self._tags: dict[tuple[str, int], bytes] = {}

    def tag(self, table: str, tablet: int) -> bytes:
        """The tag that all keys of the tablet start with."""
        tag = self._tags.get((table, tablet))
        if tag is None:
            tag = b"{%b:%b:%d}" % (_escape(self.namespace), _escape(table), tablet)
            self._tags[table, tablet] = tag
        return tag

    @property
    def wake_pattern(self) -> bytes:
        """A pattern of the channels by which the tablets of the namespace wake idle workers."""
        # The pattern has only the first part of the tag, in which the encoding leaves no glob character.
        return self.prefix[:-1] + b":*wake"

    def client(self, owner: bytes) -> bytes:
        """The key of a client's liveness token (paper, section 2.2: the token in the lock service)."""
        return self.prefix + b"client:" + owner


def check_name(what: str, name: str) -> None:
    """Raise TypeError unless ``name`` is str, ValueError unless it has 1 to 200 bytes."""
    _checked(what, name, MAX_NAME)


def _checked(what: str, name: str, longest: int) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"a {what} is str, not {type(name).__name__}")
    encoded = name.encode()
    if not 1 <= len(encoded) <= longest:
        raise ValueError(f"a {what} has 1 to {longest} bytes, this one has {len(encoded)}")
    return encoded


def _escape(name: str) -> bytes:
    return quote(name, safe="").encode()
