"""Decodes the replies of the scripts, except the reply of a prewrite, which `calls` decodes.

Only these two modules know the codes in the replies, such as ``committed``. The header of each script, and
`percolator_core.scripts`, explain codes and names.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias


def as_it_is(reply: Any) -> Any:
    """Return a reply that needs no decoding."""
    return reply


def _behind(word: bytes, reply: list[Any]) -> list[Any]:
    """Return the reply after its first element; raise AssertionError unless that is ``word``."""
    assert reply[0] == word, reply[0]
    return reply[1:]


RECOVERED: Final = {b"recovered": True, b"same": False}
RECORDED: Final = {b"recorded": True, b"overtaken": False}
NOTIFIED: Final = {b"notified": True, b"changed": False}
REFRESHED: Final = {b"refreshed": True, b"lost": False}
QUARANTINED: Final = {b"quarantined": True, b"kept": False}
"""The replies that mean yes or no, by script."""


class Timestamps(NamedTuple):
    """The last of the timestamps that were given out, and the number of catalog changes at that moment."""

    last: int
    epoch: bytes | None


class Defined(NamedTuple):
    """The namespace's data format, and the table's entry: None if this client uses another format."""

    format: bytes
    entry: bytes | None = None


class Collected(NamedTuple):
    """A step of a garbage collection: the numbers of dropped versions and rows."""

    resume: bytes
    versions: int
    rows: int


class ColdRows(NamedTuple):
    """A step of the search for cold rows, with the fields of the reply.

    ``stamp`` is an argument of `evict` for these rows. ``has_garbage`` is 1 if a row, or a part of a row, has
    to stay now but could move after a garbage collection.
    """

    resume: bytes
    stamp: bytes
    has_garbage: int
    columns: list[bytes]
    keys: bytes
    versions: bytes
    rows: bytes
    cells: bytes


class WeighedRow(NamedTuple):
    """A row, its estimated bytes of memory, and the newest commit timestamp of its cells.

    The timestamp is 2**53, above all commit timestamps, if the row has to stay in the store for now.
    """

    row: bytes
    size: int
    newest: int


class Weighed(NamedTuple):
    """The number of a tablet's rows, and a sample of them."""

    rows: int
    sample: list[WeighedRow]


def weighed(reply: list[Any]) -> Weighed:
    """Decode the reply of weigh.lua."""
    rows, *flat = reply
    sample = zip(flat[::3], map(int, flat[1::3]), map(int, flat[2::3]), strict=True)
    return Weighed(rows, list(map(WeighedRow._make, sample)))


Observed: TypeAlias = Literal["observed", "changed", "overtaken"]
Written: TypeAlias = Literal["written", "changed"]
Restored: TypeAlias = Literal["restored", "changed"]
Left: TypeAlias = Literal["left", "changed"]
Published: TypeAlias = Literal["published", "overtaken", "changed"]


class Evicted(NamedTuple):
    """The ``stamp`` argument of the next eviction, and the numbers of removed cells and rows."""

    stamp: bytes
    cells: int
    rows: int


def evicted(reply: list[Any]) -> Evicted | None:
    """Decode the reply of evict.lua."""
    return None if reply[0] == b"overtaken" else Evicted(*_behind(b"evicted", reply))


Outcome: TypeAlias = Literal[
    "prewritten", "committed", "newer commit", "locked", "rolled back", "too old", "changed", "failed over"
]

Prewritten: TypeAlias = tuple[Outcome, int, int, bytes | None]
"""Outcome, commit timestamp (0 unless committed), and the position of the cell that refuses, with its lock.

A plain tuple, which is fast to make, because each commit decodes such a reply.
"""


class Committed(NamedTuple):
    """The outcome of a `commit`; ``commit_ts`` is 0 unless the transaction is committed."""

    outcome: Literal["committed", "rolled back", "too old", "failed over"]
    commit_ts: int = 0


class Fate(NamedTuple):
    """The fate of a transaction; ``commit_ts`` is 0 unless it is committed."""

    state: Literal["committed", "rolled back", "live"]
    commit_ts: int = 0


def fate(reply: list[Any]) -> Fate:
    """Decode the reply of resolve_primary.lua."""
    return Fate("live") if reply[0] == b"live" else Fate(reply[0].decode(), *reply[1:])


class Held(NamedTuple):
    """Entries of the lock index with their locks, and the cursor of the next step (``b"0"`` at the end)."""

    cursor: bytes
    entries: list[bytes]
    locks: list[list[bytes]]


ReadCell: TypeAlias = list[bytes]
"""A list with the version; an empty list if there is no version; or None and a lock that is in the way."""


class ReadCells(NamedTuple):
    """The base and the cells."""

    base: bytes
    cells: list[ReadCell]


def read_cells(reply: list[Any]) -> ReadCells | None:
    """Decode the reply of read.lua."""
    if reply[0] == b"too old":
        return None
    base, *cells = _behind(b"cells", reply)
    return ReadCells(base, cells)


Scanned: TypeAlias = tuple[bytes, bytes, list[bytes], list[list[Any]]]
"""Resume, base, the keys of the rows, and the cells of each row, as in the reply."""


def scanned(reply: list[Any]) -> Scanned | None:
    """Decode the reply of scan.lua."""
    if reply[0] == b"too old":
        return None
    assert reply[0] == b"rows", reply[0]
    return reply[1], reply[2], reply[3::2], reply[4::2]


class Selected(NamedTuple):
    """A step of a select, with the fields of the reply."""

    resume: bytes
    row_keys: bytes
    cells: bytes
    lengths: bytes
    unsettled: list[bytes]


class Based(NamedTuple):
    """The store may have only parts of the rows, so the caller reads the base and evaluates the predicate."""

    base: bytes


def selected(reply: list[Any]) -> Selected | Based | None:
    """Decode the reply of select.lua."""
    if reply[0] == b"too old":
        return None
    if reply[0] == b"based":
        return Based(reply[1])
    resume, row_keys, cells, lengths, *unsettled = _behind(b"rows", reply)
    return Selected(resume, row_keys, cells, lengths, unsettled)


class Changed(NamedTuple):
    """A step through the changed rows, each with the timestamp of its newest change.

    The timestamp is 0 if a lock is in the way.
    """

    resume: bytes
    base: bytes
    rows: list[tuple[bytes, int]]


def changed_rows(reply: list[bytes]) -> Changed | None:
    """Decode the reply of changes.lua."""
    if reply[0] == b"too old":
        return None
    resume, base, *flat = _behind(b"rows", reply)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return Changed(resume, base, [(row, int(commit_ts or 0)) for row, commit_ts in pairs])


class Cells(NamedTuple):
    """A step through the cells of a tablet.

    Each row has its key, its packed versions by column, and the acknowledgements that have a version later
    than the snapshot.
    """

    resume: bytes
    base: bytes
    rows: list[tuple[bytes, dict[bytes, bytes], list[bytes]]]


def cells(reply: list[Any]) -> Cells | None:
    """Decode the reply of cells.lua."""
    if reply[0] == b"too old":
        return None
    resume, base, *flat = _behind(b"rows", reply)
    rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    found = [(row, dict(zip(cells[::2], cells[1::2], strict=True)), later) for row, cells, later in rows]
    return Cells(resume, base, found)


class Claimed(NamedTuple):
    """The leased cells, the deadline of their leases, and the time until the next cell is due (-1: none).

    Each cell has the position of the tag, the position of the observer in its group, the mark, the time when
    it was due, its failed attempts, and the version of the table. All times are in microseconds.
    """

    deadline: int
    next_due: int
    cells: list[tuple[int, int, bytes, int, int, bytes]]


def claimed(reply: list[Any]) -> Claimed:
    """Decode the reply of claim.lua."""
    parts = iter(reply)
    deadline, next_due = next(parts), next(parts)
    return Claimed(deadline, next_due, list(zip(*[parts] * 6, strict=True)))


class Requeued(NamedTuple):
    """The cursor of the next step (``b"0"`` at the end), and the number of cells that were put back."""

    cursor: bytes
    put_back: int


def marked(reply: list[Any]) -> int | None:
    """Decode the reply of mark.lua."""
    return None if reply[0] == b"not observed" else _behind(b"marked", reply)[0]


def committed(reply: list[Any]) -> Committed:
    """Decode the reply of commit.lua."""
    return Committed(reply[0].decode(), *reply[1:])


def swept(reply: bytes) -> bytes | None:
    """Decode the reply of sweep.lua."""
    return None if reply == b"changed" else reply
