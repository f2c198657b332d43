"""Read from the server the state that a history left.

The keys are read directly, not through the library: the code under test must not check itself. Reading keys
changes nothing, but a read through the library resolves the locks that it meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from percolator_core.database import Database
from percolator_core.layout.keys import (
    SAFE_POINT,
    decode_column,
    decode_lock_mark,
    decode_mark,
    history_key,
    is_internal,
    locks_key,
    meta_key,
    row_prefix,
    rows_key,
    unpack_column,
)
from percolator_core.layout.records import unpack_version
from percolator_torture.histories.final_state import FinalState, Leftover, LeftoverKind, Versions
from percolator_torture.histories.history import CellKey
from percolator_torture.histories.marks import untag_value

_ROWS_PER_STEP: Final = 250
_ENTRIES_PER_STEP: Final = 1000
_KEYS_PER_STEP: Final = 5000
_TABLETS_AT_A_TIME: Final = 8


def read_final(db: Database, tables: Iterable[str], *, collected: bool = False) -> FinalState:
    """Read the state of some tables after all clients have stopped and all locks are resolved.

    Nothing is changed. ``leftovers`` are locks, pending notifications (but not of cells in quarantine) and
    orphans: index entries that refer to nothing, and rows without an index entry.

    Args:
        db: the database; the caller must not be a task of it.
        tables: the names of the tables.
        collected: True if `Database.collect_garbage` has run to its end since the last transaction. Then
            tombstones at or below the safe point and empty rows count as orphans, too.

    Raises:
        UnknownTable: there is no table of that name.
        StoreUnavailable: the store does not answer.
    """
    final = FinalState()
    for table in tables:
        tablets = [_Tablet(db, final, table, tag, collected) for tag in db.catalog.table(table).tags]
        with db.concurrency(_TABLETS_AT_A_TIME) as executor:
            list(executor.map(_Tablet.read, tablets))
        _look_at_keys(db, {tablet.tag: tablet for tablet in tablets})
    return final


class _Tablet:
    """Reads one tablet into a `FinalState`."""

    def __init__(self, db: Database, final: FinalState, table: str, tag: bytes, collected: bool) -> None:
        self.tag = tag
        self.rows: set[bytes] = set()
        self._store = db.store
        self._final = final
        self._table = table
        self._collected = collected
        self._safe = 0
        self._locks: set[tuple[int, bytes, bytes]] = set()

    def read(self) -> None:
        self._safe = int(self._store.one((b"HGET", meta_key(self.tag), SAFE_POINT)) or 0)
        self._final.safe_point = max(self._final.safe_point, self._safe)
        for rows in self._pages(rows_key(self.tag), _ROWS_PER_STEP):
            self.rows.update(rows)
            replies = self._store.call(
                *[(b"HGETALL", row_prefix(self.tag) + row) for row in rows],
                *[self._page(history_key(self.tag, row), b"-", _ENTRIES_PER_STEP) for row in rows],
            )
            for row, flat, older in zip(rows, replies[: len(rows)], replies[len(rows) :], strict=True):
                self._read_row(row, dict(zip(flat[0::2], flat[1::2], strict=True)), older)
        for entries in self._pages(locks_key(self.tag), _ENTRIES_PER_STEP, by_score=True):
            self._check_lock_index(entries)

    def look_at_key(self, name: bytes) -> None:
        """Report a key whose row is not in the row index; report each entry of a dirty index."""
        kind, _, rest = name.partition(b":")
        if kind in {b"r", b"v"} and rest not in self.rows:
            what = "a row" if kind == b"r" else "the history of a row"
            self.leave("orphan", rest, b"", f"{what} that is not in the row index")
        if kind == b"dirty":
            for marks in self._pages(self.tag + name, _ENTRIES_PER_STEP, by_score=True):
                for mark in marks:
                    column, row = decode_mark(mark)
                    self.leave("notification", row, column, f"a mark for the observer {rest.decode()!r}")

    def leave(self, kind: LeftoverKind, row: bytes, column: bytes, detail: str) -> None:
        name = decode_column(column) if column else ""
        self._final.leftovers.append(Leftover(kind, self._table, row, name, detail))

    # Internals.

    def _read_row(self, row: bytes, fields: dict[bytes, bytes], older: list[bytes]) -> None:
        if not fields and not older and self._collected:
            self.leave("orphan", row, b"", "an entry of the row index without a row")
        packed: dict[bytes, list[bytes]] = {}
        for field, value in fields.items():
            self._read_field(row, field[:1], field[1:], value, packed)
        while older:
            for member in older:
                column, version = unpack_column(member)
                packed.setdefault(column, []).append(version)
            if len(older) < _ENTRIES_PER_STEP:
                break
            page = self._page(history_key(self.tag, row), b"(" + older[-1], _ENTRIES_PER_STEP)
            older = self._store.one(page)
        pack = self._final.processes.pack
        for column, versions in packed.items():
            if is_internal(column):
                continue
            cell = CellKey(self._table, row, column.decode())
            self._final.cells[cell] = Versions(
                (commit_ts, start_ts, pack(None if value is None else untag_value(value)[0]))
                for commit_ts, start_ts, value in map(unpack_version, versions)
            )

    def _read_field(
        self, row: bytes, kind: bytes, rest: bytes, value: bytes, packed: dict[bytes, list[bytes]]
    ) -> None:
        if kind == b"c":
            packed[rest] = [value]
        elif kind in {b"l", b"n"}:
            start_ts = int.from_bytes(value[1:8], "big")
            column = rest if kind == b"l" else rest[8:]
            self._locks.add((start_ts, column, row))
            self.leave("lock", row, column, f"the lock of the transaction begun at {start_ts}")
        elif kind == b"x" and self._collected and int.from_bytes(rest[:8], "big") <= self._safe:
            self.leave("orphan", row, rest[8:], "a tombstone below the safe point of garbage collection")

    def _check_lock_index(self, entries: list[bytes]) -> None:
        for entry in entries:
            start_ts, column, row = decode_lock_mark(entry)
            if (start_ts, column, row) not in self._locks:
                self.leave(
                    "orphan", row, column, f"an entry of the lock index for {start_ts}, without a lock"
                )

    def _pages(self, key: bytes, length: int, *, by_score: bool = False) -> Iterator[list[bytes]]:
        """Yield the members of a sorted set, in bounded steps: ordered by score, or by member."""
        bound, offset = b"-", 0
        while True:
            if by_score:
                command: Any = (b"ZRANGE", key, offset, offset + length - 1)
            else:
                command = self._page(key, bound, length)
            members = self._store.one(command)
            if members:
                yield members
            if len(members) < length:
                return
            bound, offset = b"(" + members[-1], offset + length

    @staticmethod
    def _page(key: bytes, bound: bytes, length: int) -> Any:
        return (b"ZRANGEBYLEX", key, bound, b"+", b"LIMIT", 0, length)


def find_keys(db: Database, beginning: bytes) -> list[bytes]:
    """Return the keys of the store that begin with ``beginning``, which has no glob character."""
    pattern, keys = beginning + b"*", set[bytes]()  # SCAN may return a key twice
    # SCAN names no key by which the store could choose the server, so every server is asked.
    for endpoint in db.store.endpoints():
        cursor: Any = b"0"
        while True:
            command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _KEYS_PER_STEP)
            cursor, found = db.store.ask(endpoint, command)
            keys.update(found)
            if cursor == b"0":
                break
    return sorted(keys)


def _look_at_keys(db: Database, tablets: dict[bytes, _Tablet]) -> None:
    """Scan all keys of the table, the only way to find keys without an index entry."""
    tag = next(iter(tablets))
    # The tag up to the tablet's number.
    for key in find_keys(db, tag[: tag.rindex(b":") + 1]):
        end = key.index(b"}") + 1
        if key[:end] in tablets:
            tablets[key[:end]].look_at_key(key[end:])
