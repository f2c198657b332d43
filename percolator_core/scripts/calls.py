"""One function a script: it builds the call and decodes the reply.

Nothing else knows the order of a script's arguments, or the words in its replies. A function has the name of
its script, and its parameters those of the script's header, which explains them. `Store.run` executes a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain as flattened
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Mode: TypeAlias = Literal["strong", "weak"]


Direction: TypeAlias = Literal["forward", "backward"]


class Call(NamedTuple, Generic[T]):
    """A call of a script; ``decode`` makes its reply a ``T``."""

    script: str
    keys: Sequence[bytes]
    arguments: Sequence[bytes | str | int]
    decode: Callable[[Any], T]


def _as_it_is(reply: Any) -> Any:
    return reply


def _behind(word: bytes, reply: list[Any]) -> list[Any]:
    """The reply behind its first word; AssertionError if that is another one."""
    assert reply[0] == word, reply[0]
    return reply[1:]


# The oracle and the catalog.


class Timestamps(NamedTuple):
    """The last of the timestamps that were given out, and how often the catalog was changed by then."""

    last: int
    epoch: bytes | None


def timestamp(oracle: bytes, catalog: bytes, count: int) -> Call[Timestamps]:
    """Ask for ``count`` timestamps."""
    return Call("timestamp", (oracle, catalog), (count,), Timestamps._make)


_RECOVERED: Final = {b"recovered": True, b"same": False}


def recover_oracle(oracle: bytes, catalog: bytes, server: bytes, newest: int) -> Call[bool]:
    """True if the server is another one than before."""
    return Call("recover_oracle", (oracle, catalog), (server, newest), _RECOVERED.__getitem__)


def now(key: bytes) -> Call[int]:
    """Ask for the server's clock, in microseconds since 1970."""
    return Call("now", (key,), (), _as_it_is)


class Defined(NamedTuple):
    """The format of the namespace, and the table's entry; None if the format is another one than ours."""

    format: bytes
    entry: bytes | None = None


def define_table(catalog: bytes, format_key: bytes, name: str, entry: str, data_format: str) -> Call[Defined]:
    """Add a table's entry to the catalog, unless there is one."""
    arguments = (name, entry, data_format)
    return Call("define_table", (catalog, format_key), arguments, lambda reply: Defined(*reply))


def change_table(
    catalog: bytes, name: str, entry: bytes, replacement: str, *, numbered: bool
) -> Call[bytes | None]:
    """The entry that the catalog holds afterwards."""
    arguments = (name, entry, replacement, "numbered" if numbered else "")
    return Call("change_table", (catalog,), arguments, lambda reply: reply or None)


_RECORDED: Final = {b"recorded": True, b"overtaken": False}


def record_chain(chain: bytes, activation: int, fields: Mapping[str, str]) -> Call[bool]:
    """False if a later activation has begun."""
    flat = flattened.from_iterable(fields.items())
    return Call("record_chain", (chain,), (activation, *flat), _RECORDED.__getitem__)


# One tablet of a table.


Fencing: TypeAlias = Literal["raise", "found", "mend"]


def fence(
    tag: bytes,
    version: int,
    safe_point: int,
    how: Fencing,
    fields: Sequence[bytes | str] = (),
) -> Call[bool]:
    """True if the tablet had an earlier version."""
    return Call("fence", (tag,), (version, safe_point, how, *fields), bool)


Observed: TypeAlias = Literal["observed", "changed", "overtaken"]


def observe(  # noqa: PLR0917
    tag: bytes,
    how: Literal["replace", "add"],
    version: bytes,
    activation: int,
    retired: Sequence[str],
    columns: Sequence[bytes | str],
) -> Call[Observed]:
    """Register a tablet's observers."""
    arguments = (how, version, activation, len(retired), *retired, *columns)
    return Call("observe", (tag,), arguments, bytes.decode)  # type: ignore[arg-type]


def raise_safe_point(tag: bytes, safe_point: int) -> Call[int]:
    """Raise a tablet's safe point; returns the safe point afterwards."""
    return Call("raise_safe_point", (tag,), (safe_point,), _as_it_is)


class Collected(NamedTuple):
    """The bound to go on from, empty at the end, and how many versions and rows were dropped."""

    resume: bytes
    versions: int
    rows: int


def collect(
    tag: bytes, start: bytes, most_rows: int, safe_point: int, observers: Iterable[str]
) -> Call[Collected]:
    """Collect garbage in some rows."""
    return Call("collect", (tag,), (start, most_rows, safe_point, *observers), Collected._make)


def sweep(
    tag: bytes, version: int, start: bytes, most_rows: int, columns: Iterable[bytes]
) -> Call[bytes | None]:
    """The bound to go on from, empty at the end; None if the tablet has another version."""
    bounds = (version, start, most_rows)
    return Call("sweep", (tag,), (*bounds, *columns), lambda reply: None if reply == b"changed" else reply)


def drop_table(tag: bytes, version: int, most_rows: int, observers: Iterable[str]) -> Call[int]:
    """Remove some rows of a dropped table; returns how many, 0 when the tablet is gone."""
    return Call("drop_table", (tag,), (version, most_rows, *observers), _as_it_is)


def sync(tag: bytes) -> Call[None]:
    """Write something, so that WAIT and WAITAOF have a write to wait for."""
    return Call("sync", (tag,), (), lambda _: None)


# Transactions. Cells are flat: the position of the tag (from 1), row, column, kind, and for `prewrite` value.


class Prewritten(NamedTuple):
    """The reply of `prewrite`.

    ``commit_ts`` is 0 unless it is committed, ``cell`` the position of the cell that refuses it, from 0.
    """

    outcome: Literal[
        "prewritten",
        "committed",
        "newer commit",
        "locked",
        "rolled back",
        "too old",
        "changed",
        "failed over",
    ]
    commit_ts: int = 0
    cell: int = 0
    lock: bytes | None = None


Role: TypeAlias = Literal["both", "primary", "secondaries"]
"""Which part of a transaction a call covers: all of it, the part with the primary, or another part."""


def prewrite(  # noqa: PLR0917
    tags: Sequence[bytes],
    oracle: Sequence[bytes],
    role: Role,
    start_ts: int,
    cells: Sequence[bytes],
    lock: Sequence[bytes | str | int],
    versions: bytes,
) -> Call[Prewritten]:
    """Prewrite cells, and commit them if ``role`` is both."""
    return Call("prewrite", (*tags, *oracle), (role, start_ts, *cells, *lock, versions), _prewritten)


def _prewritten(reply: list[Any]) -> Prewritten:
    if reply[0] == b"committed":
        return Prewritten("committed", reply[1])
    word, *refused = reply
    return Prewritten(word.decode(), 0, *refused)


class Committed(NamedTuple):
    """The reply of `commit`; ``commit_ts`` is 0 unless it is committed."""

    outcome: Literal["committed", "rolled back", "too old", "failed over"]
    commit_ts: int = 0


def commit(  # noqa: PLR0917
    tags: Sequence[bytes],
    oracle: Sequence[bytes],
    role: Literal["primary", "secondaries"],
    start_ts: int,
    commit_ts: int,
    cells: Sequence[bytes | int],
) -> Call[Committed]:
    """Commit cells that were prewritten."""
    arguments = (role, start_ts, commit_ts, *cells)
    return Call("commit", (*tags, *oracle), arguments, lambda reply: Committed(reply[0].decode(), *reply[1:]))


def rollback(tags: Sequence[bytes], start_ts: int, cells: Sequence[bytes | int]) -> Call[int]:
    """Remove a transaction's locks; returns how many."""
    return Call("rollback", tags, (start_ts, *cells), _as_it_is)


_NOTIFIED: Final = {b"notified": True, b"changed": False}


def notify(tags: Sequence[bytes], cells: Sequence[bytes | int], versions: bytes) -> Call[bool]:
    """False if a table is no longer what the caller takes it for."""
    return Call("notify", tags, (*cells, versions), _NOTIFIED.__getitem__)


_REFRESHED: Final = {b"refreshed": True, b"lost": False}


def refresh(tag: bytes, start_ts: int, row: bytes, column: bytes) -> Call[bool]:
    """False if the lock is gone."""
    return Call("refresh", (tag,), (start_ts, row, column), _REFRESHED.__getitem__)


class Fate(NamedTuple):
    """What became of a transaction. ``commit_ts`` is 0 unless it is committed."""

    state: Literal["committed", "rolled back", "live"]
    commit_ts: int = 0


def resolve_primary(  # noqa: PLR0917
    tag: bytes,
    start_ts: int,
    row: bytes,
    column: bytes,
    owner: Literal["dead", "alive"],
    wall: int,
    ttl_ms: int,
) -> Call[Fate]:
    """Decide a transaction's fate at its primary."""
    return Call("resolve_primary", (tag,), (start_ts, row, column, owner, wall, ttl_ms), _fate)


def _fate(reply: list[Any]) -> Fate:
    return Fate("live") if reply[0] == b"live" else Fate(reply[0].decode(), *reply[1:])


class Held(NamedTuple):
    """Entries of the lock index with their locks, and where to go on, ``b"0"`` at the end."""

    cursor: bytes
    entries: list[bytes]
    locks: list[list[bytes]]


def held(
    tag: bytes,
    cursor: bytes = b"0",
    most: int = 0,
    untouched: int | None = None,
    entries: Sequence[bytes] = (),
) -> Call[Held]:
    """Read the locks of ``entries`` of the lock index or, without them, of a step through it."""
    return Call("held", (tag,), (cursor, most, b"" if untouched is None else untouched, *entries), Held._make)


# Reading at a timestamp.


ReadCell: TypeAlias = list[bytes]
"""A version; nothing where there is none; or None and a lock that stands in the way."""


def read(tag: bytes, at: int, row: bytes, columns: Iterable[bytes]) -> Call[list[ReadCell] | None]:
    """None if the timestamp is too old."""
    return Call("read", (tag,), (at, row, *columns), read_cells)


def read_cells(reply: list[Any]) -> list[ReadCell] | None:
    """The decoded reply of `read`."""
    return None if reply[0] == b"too old" else _behind(b"cells", reply)


def history(
    tag: bytes, row: bytes, column: bytes, most_versions: int, most_bytes: int = -1
) -> Call[list[bytes]]:
    """The packed versions of a cell, newest first; of each at most so many bytes, -1 is all."""
    return Call("history", (tag,), (row, column, most_versions, most_bytes), _as_it_is)


class Scanned(NamedTuple):
    """The bound to resume from, empty at the end; row keys, and for each its cells as scan.lua has them."""

    resume: bytes
    rows: list[bytes]
    cells: list[list[Any]]


def scan(  # noqa: PLR0917
    tag: bytes,
    at: int,
    start: bytes,
    stop: bytes,
    most_rows: int,
    most_bytes: int,
    direction: Direction,
    most_of_each: int,
    columns: Iterable[bytes],
) -> Call[Scanned | None]:
    """None if the timestamp is too old."""
    bounds = (at, start, stop, most_rows, most_bytes, direction, most_of_each)
    return Call("scan", (tag,), (*bounds, *columns), _scanned)


def _scanned(reply: list[Any]) -> Scanned | None:
    if reply[0] == b"too old":
        return None
    resume, *flat = _behind(b"rows", reply)
    return Scanned(resume, flat[::2], flat[1::2])


class Selected(NamedTuple):
    """The bound to resume from, empty at the end, and rows as select.lua has them."""

    resume: bytes
    row_keys: bytes
    cells: bytes
    lengths: bytes
    unsettled: list[bytes]


def select(  # noqa: PLR0917
    tag: bytes,
    at: int,
    start: bytes,
    stop: bytes,
    direction: Direction,
    most_rows: int,
    most_looked_at: int,
    most_bytes: int,
    solid: int,
    columns: Sequence[bytes],
    predicate: Sequence[bytes | int],
) -> Call[Selected | None]:
    """None if the timestamp is too old."""
    bounds = (at, start, stop, direction, most_rows, most_looked_at, most_bytes)
    return Call("select", (tag,), (*bounds, solid, len(columns), *columns, *predicate), _selected)


def _selected(reply: list[Any]) -> Selected | None:
    if reply[0] == b"too old":
        return None
    resume, row_keys, cells, lengths, *unsettled = _behind(b"rows", reply)
    return Selected(resume, row_keys, cells, lengths, unsettled)


def changes(  # noqa: PLR0917
    tag: bytes,
    since: int,
    at: int,
    start: bytes,
    stop: bytes,
    most_rows: int,
    most_bytes: int,
    columns: Iterable[bytes],
) -> Call[tuple[bytes, list[tuple[bytes, int]]] | None]:
    """The bound to resume from, and of each changed row the newest change, 0 if a lock stands in the way.

    None if the timestamps are too old.
    """
    bounds = (since, at, start, stop, most_rows, most_bytes)
    return Call("changes", (tag,), (*bounds, *columns), _changes)


def _changes(reply: list[bytes]) -> tuple[bytes, list[tuple[bytes, int]]] | None:
    if reply[0] == b"too old":
        return None
    resume, *flat = _behind(b"rows", reply)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return resume, [(row, int(commit_ts or 0)) for row, commit_ts in pairs]


# Dirty cells.


class Claimed(NamedTuple):
    """The deadline of the leases (µs); microseconds until the next cell is due, or -1; the leased cells.

    Each cell is position of the tag, position of the observer in its group, mark, when it was due (µs),
    failed attempts, version of the table.
    """

    deadline: int
    next_due: int
    cells: list[tuple[int, int, bytes, int, int, bytes]]


def claim(
    tags: Sequence[bytes], most: int, lease_ms: int, horizon_ms: int, groups: Sequence[str | int]
) -> Call[Claimed]:
    """Lease dirty cells; ``groups`` are flat: numbers of tags and observers, then name and limit of each."""
    return Call("claim", tags, (most, lease_ms, horizon_ms, *groups), _claimed)


def _claimed(reply: list[Any]) -> Claimed:
    parts = iter(reply)
    deadline, next_due = next(parts), next(parts)
    return Claimed(deadline, next_due, list(zip(*[parts] * 6, strict=True)))


def renew(tag: bytes, leases: Sequence[bytes | str | int]) -> Call[int]:
    """Prolong leases, flat: observer, row, column, deadline, new deadline; returns how many."""
    return Call("renew", (tag,), leases, _as_it_is)


_CLEARED: Final = {b"cleared": True, b"kept": False}


def clear(  # noqa: PLR0917
    tag: bytes,
    observer: str,
    mode: Mode,
    row: bytes,
    column: bytes,
    deadline: int,
    before: int,
    start_ts: int,
) -> Call[bool]:
    """True if the mark is gone."""
    arguments = (observer, mode, row, column, deadline, before, start_ts)
    return Call("clear", (tag,), arguments, _CLEARED.__getitem__)


def postpone(  # noqa: PLR0917
    tag: bytes,
    observer: str,
    row: bytes,
    column: bytes,
    delay_ms: int,
    attempt: Literal["failed", "unharmed"],
    deadline: int,
    before: int,
) -> Call[int]:
    """Give a leased cell back; returns its failed attempts."""
    arguments = (observer, row, column, delay_ms, attempt, deadline, before)
    return Call("postpone", (tag,), arguments, _as_it_is)


_QUARANTINED: Final = {b"quarantined": True, b"kept": False}


def quarantine(  # noqa: PLR0917
    tag: bytes,
    observer: str,
    mode: Mode,
    row: bytes,
    column: bytes,
    deadline: int,
    before: int,
    start_ts: int,
    record: str,
) -> Call[bool]:
    """True if the cell was put aside."""
    arguments = (observer, mode, row, column, deadline, before, start_ts, record)
    return Call("quarantine", (tag,), arguments, _QUARANTINED.__getitem__)


class Requeued(NamedTuple):
    """Where to go on, ``b"0"`` at the end, and how many cells were put back."""

    cursor: bytes
    put_back: int


def requeue(
    tag: bytes, observer: str, cursor: bytes, most: int, marks: Sequence[bytes] = ()
) -> Call[Requeued]:
    """Without ``marks`` a step through all of the observer's."""
    return Call("requeue", (tag,), (observer, cursor, most, *marks), Requeued._make)


def discard(tag: bytes, observer: str, records: Sequence[bytes | str]) -> Call[int]:
    """Forget quarantined cells, flat: mark, SHA-1 of the record; returns how many."""
    return Call("discard", (tag,), (observer, *records), _as_it_is)


def mark(tag: bytes, observer: str, mode: Mode, column: bytes, rows: Sequence[bytes]) -> Call[int | None]:
    """How many cells were not dirty; None if no active chain has the observer."""
    return Call("mark", (tag,), (observer, mode, column, *rows), _marked)


def _marked(reply: list[Any]) -> int | None:
    return None if reply[0] == b"not observed" else _behind(b"marked", reply)[0]
