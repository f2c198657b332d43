"""The quarantine: cells for which an observer failed as often as its retries allow.

`Quarantine` lists, retries and discards these cells.

>>> from percolator_core.admin.quarantine import Quarantine
>>> quarantine = Quarantine(db, chain)
>>> quarantine.count()
{'split': 1, 'total': 0}
>>> quarantine.retry(quarantine.find("docs", "storm"))
1
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from percolator_core.catalog.catalog import Catalog
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import decode_mark, encode_mark, failed_key, tablet_number
from percolator_core.layout.records import row_bytes
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import parse_row
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Chain
from percolator_core.runtime.batches import batched
from percolator_core.scripts import calls

_COUNTED_AT_ONCE: Final = 500
"""One request counts the cells of at most this many places."""

_CHANGED_AT_ONCE: Final = 500
"""One request retries or discards at most this many cells."""

_LISTED_AT_ONCE: Final = 200

_BEGIN: Final = b"0"
"""The cursor at the start and at the end of a scan of Redis."""

_CURSORS: Final = 2**64
"""Cursors of Redis are numbers below this; Redis refuses any other."""

_LONGEST_MARK: Final = 200
"""A mark of more bytes is shortened in a cursor, because column names and row keys have up to 64 KiB."""

_MARKS_BYTES: Final = 2_000
"""A cursor has at most this many bytes of marks, because servers and proxies accept URLs of 8 KiB."""


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell in quarantine: its observer failed ``attempts`` times, last at ``time`` (µs)."""

    observer: str
    table: str
    row: bytes
    column: str
    error: str
    attempts: int
    time: int
    traceback: str


class _Place(NamedTuple):
    """An observer's cells in one tablet. Pages list places in the order of observer, table and tablet."""

    observer: str
    table: str
    number: int


@dataclass(slots=True)
class _Position:
    """The end of a page: a place, the cursor of its scan, and the cells that were found but not shown.

    After the scan, ``scan`` is None. A scan may return more cells than were requested. The ``marks`` of the
    extra cells are part of the position: the next page begins with them, then the scan continues. But if a
    scan returns all cells of a place at once, there may be too many marks for a URL. Then the cells are
    sorted by their marks, and ``after`` is the last mark shown (see `_sort_key`).
    """

    place: _Place
    scan: bytes | None = _BEGIN
    marks: list[bytes] = field(default_factory=list)
    after: bytes = b""

    def pack(self) -> str:
        """Return the position as text for a URL."""
        scan = None if self.scan is None else self.scan.decode()
        marks = [base64.b64encode(mark).decode() for mark in self.marks]
        after = base64.b64encode(self.after).decode()
        return base64.urlsafe_b64encode(json.dumps([*self.place, scan, marks, after]).encode()).decode()

    @classmethod
    def unpack(cls, text: str) -> _Position:
        """Invert `pack`. Raise ValueError for any other text."""
        try:
            observer, table, number, scan, marks, after = json.loads(base64.urlsafe_b64decode(text.encode()))
            return cls(
                _Place(str(observer), str(table), int(number)),
                None if scan is None else b"%d" % (int(scan) % _CURSORS),
                [base64.b64decode(mark, validate=True) for mark in marks],
                base64.b64decode(after, validate=True),
            )
        except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error):
            raise ValueError(
                "the cursor is not from a page of this list: leave it out to begin with the first page"
            ) from None


class Quarantine:
    """The cells in quarantine of a chain's observers, in the observed tables that exist."""

    def __init__(self, db: Database, chain: Chain) -> None:
        """Read the list of tables.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        self._db = db
        self._chain = chain
        observed = {table for table, _ in chain.observed}
        self.tables = {one.name: one for one in db.catalog.tables() if one.name in observed}
        """The definitions of the observed tables that exist, by name."""
        self._observed = {
            column: tuple(names) for column, names in chain.observed.items() if column[0] in self.tables
        }

    def count(self) -> dict[str, int]:
        """Return the number of cells in quarantine for each observer of the chain. Reads no cell."""
        asked = [(name, tag) for _, tag, names in self._index(None).places() for name in names]
        sizes = self._db.store.call(*[(b"HLEN", failed_key(tag, name)) for name, tag in asked])
        counts = dict.fromkeys(self._chain.observers, 0)
        for (name, _), size in zip(asked, sizes, strict=True):
            counts[name] += size
        return counts

    def cells(
        self, observer: str | None = None, keys: Mapping[str, bytes] | None = None
    ) -> Iterator[FailedCell]:
        """Return all cells, or the cells of one observer, or of the rows in ``keys``, in any order.

        ``keys`` has one row key for each table; only the cells of these rows are read. If the quarantine
        changes during the iteration, a cell may be returned twice, but each cell that stays is returned.

        Raises:
            ConfigurationError: the chain has no such observer.
        """
        index = self._index(observer)
        if keys is None:
            return self._all(index)
        found = (cell for table, row in keys.items() for cell in self.find(table, row))
        return (cell for cell in found if observer in (None, cell.observer))

    def _all(self, index: DirtyIndex) -> Iterator[FailedCell]:
        catalog = self._db.catalog
        for table, tag, names in index.places():
            for name in names:
                cursor: Any = 0
                while cursor != _BEGIN:
                    command = (b"HSCAN", failed_key(tag, name), cursor, b"COUNT", _LISTED_AT_ONCE)
                    cursor, flat = self._db.store.one(command)
                    for mark, record in zip(flat[::2], flat[1::2], strict=True):
                        yield _failed_cell(catalog, table, name, mark, record)

    def keys(self, text: str) -> dict[str, bytes]:
        """Parse a text (`percolator_core.notation`) as a row key of each table that allows it, for `cells`.

        Raises:
            NotationError: the text is a row key of no table.
        """
        found: dict[str, bytes] = {}
        refused: NotationError | None = None
        for name, definition in self.tables.items():
            try:
                found[name] = parse_row(definition, text)
            except NotationError as error:
                refused = error
        if refused is not None and not found:
            raise refused
        return found

    def find(self, table: str, row: str | bytes) -> list[FailedCell]:
        """Return the cells of one row that are in quarantine, sorted by observer; no other cell is read.

        Raises:
            ValueError: the row is no key of that table.
        """
        key = row_bytes(row)
        columns = {column: names for column, names in self._observed.items() if column[0] == table}
        if not columns:
            return []
        catalog, handle = self._db.catalog, self._db.catalog.table(table)
        tag = handle.tag(key)
        observers = sorted({name for names in columns.values() for name in names})
        marks = [encode_mark(handle.encode(column), key) for _, column in sorted(columns)]
        replies = self._db.store.call(*[(b"HMGET", failed_key(tag, name), *marks) for name in observers])
        return [
            _failed_cell(catalog, table, name, mark, record)
            for name, records in zip(observers, replies, strict=True)
            for mark, record in zip(marks, records, strict=True)
            if record is not None
        ]

    def page(
        self, limit: int, cursor: str | None = None, observer: str | None = None
    ) -> tuple[list[FailedCell], str | None]:
        """Return the next ``limit`` cells (1 or more), sorted by observer, and the cursor of the next page.

        ``cursor`` is the cursor that the previous page returned for the same ``observer``; the last page
        returns None. The cost of a page depends on its size and on the number of tablets, not on the number
        of cells. If cells leave the quarantine in between, a page may be short, and a cell may be returned
        twice. Each cell that stays is returned. A page is longer than ``limit`` if the names of the next
        columns or rows are too long for a cursor.

        Raises:
            ValueError: the limit is below 1, or the cursor is not from a page.
            ConfigurationError: the chain has no such observer.
        """
        if limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        pages = _Pages(self._db, self._index(observer))
        found = pages.after(None if cursor is None else _Position.unpack(cursor), limit)
        return found, pages.cursor

    def retry(self, cells: Iterable[FailedCell] | None = None, observer: str | None = None) -> int:
        """Make cells dirty again: ``cells``, or the cells of one or all observers. Attempts count from 0.

        Return the number of cells; cells that are no longer in quarantine do not count.

        Raises:
            ConfigurationError: the chain has no such observer.
            StoreUnavailable: the store does not answer. Some cells may already be dirty: retry the rest.
        """
        index = self._index(observer)
        if cells is None:
            return sum(self._requeue(tag, name) for _, tag, names in index.places() for name in names)
        return sum(
            self._requeue(tag, name, *[mark for mark, _ in marked])
            for tag, name, marked in self._batches(index, cells)
        )

    def discard(self, cells: Iterable[FailedCell]) -> int:
        """Remove cells from quarantine. A later change or a rerun makes them dirty again.

        Return the number of cells. A cell that was retried and failed again after ``cells`` were read stays
        in quarantine. If a cell has changed since it failed, its dirty mark stays.

        Raises:
            StoreUnavailable: the store does not answer. Some cells may already be removed: discard the rest.
        """
        store, count = self._db.store, 0
        for tag, name, marked in self._batches(self._index(None), cells):
            records = store.one((b"HMGET", failed_key(tag, name), *[mark for mark, _ in marked]))
            pairs: list[bytes | str] = []
            for (mark, cell), record in zip(marked, records, strict=True):
                # The time is the start timestamp of a run, so no two records of a cell have the same time.
                if record is not None and json.loads(record)["time"] == cell.time:
                    pairs += (mark, hashlib.sha1(record, usedforsecurity=False).hexdigest())
            if pairs:
                count += store.run(calls.discard(tag, name, pairs))
        return count

    def _batches(
        self, index: DirtyIndex, cells: Iterable[FailedCell]
    ) -> Iterator[tuple[bytes, str, list[tuple[bytes, FailedCell]]]]:
        """Yield batches: tag, observer, and (mark, cell) pairs. Cells that nobody observes are left out."""
        observed = {(table, tag, name) for table, tag, names in index.places() for name in names}
        marked: dict[tuple[bytes, str], list[tuple[bytes, FailedCell]]] = {}
        for cell in cells:
            handle = self._db.catalog.table(cell.table)
            tag = handle.tag(cell.row)
            if (cell.table, tag, cell.observer) in observed:
                mark = encode_mark(handle.encode(cell.column), cell.row)
                marked.setdefault((tag, cell.observer), []).append((mark, cell))
        for (tag, name), every in marked.items():
            for some in batched(every, _CHANGED_AT_ONCE):
                yield tag, name, some

    def _requeue(self, tag: bytes, observer: str, *marks: bytes) -> int:
        """Make these cells dirty; without marks, all cells of the observer in the tablet."""
        store, cursor = self._db.store, _BEGIN
        count = 0
        while True:
            cursor, requeued = store.run(calls.requeue(tag, observer, cursor, _CHANGED_AT_ONCE, marks))
            count += requeued
            if marks or cursor == _BEGIN:
                return count

    def _index(self, observer: str | None) -> DirtyIndex:
        if observer is None:
            return DirtyIndex(self._db.client, self._observed)
        if observer not in self._chain.observers:
            raise ConfigurationError(
                f"{self._chain.name} has no observer {observer!r}: it has {', '.join(self._chain.observers)}"
            )
        columns = {column: (observer,) for column, names in self._observed.items() if observer in names}
        return DirtyIndex(self._db.client, columns)


def _failed_cell(catalog: Catalog, table: str, observer: str, mark: bytes, record: bytes) -> FailedCell:
    column, row = decode_mark(mark)
    return FailedCell(observer, table, row, catalog.column_name(table, column), **json.loads(record))


def _sort_key(mark: bytes) -> bytes:
    """Return the mark, or the beginning and a digest of a mark that is too long for a cursor."""
    if len(mark) <= _LONGEST_MARK:
        return mark
    return mark[:_LONGEST_MARK] + hashlib.sha1(mark, usedforsecurity=False).digest()


class _Pages:
    """Reads one page; ``cursor`` is the position of its end."""

    def __init__(self, db: Database, index: DirtyIndex) -> None:
        self._store = db.store
        self._catalog = db.catalog
        tags = {
            _Place(name, table, tablet_number(tag)): tag
            for table, tag, names in index.places()
            for name in names
        }
        self._places = sorted(tags)
        self._keys = [failed_key(tags[place], place.observer) for place in self._places]
        self.cursor: str | None = None

    def after(self, position: _Position | None, limit: int) -> list[FailedCell]:
        """Return the next cells after a position; None is the beginning. Set ``cursor``."""
        at = 0 if position is None else bisect_left(self._places, position.place)
        if position is None or at == len(self._places) or self._places[at] != position.place:
            position = self._start(at)  # the table of that place was dropped
        found: list[FailedCell] = []
        while position is not None:
            # One extra cell is read, to find out if there is another page.
            new, is_whole = self._take(position, limit + 1 - len(found))
            space = limit - len(found)
            found += self._cells(position.place, new[:space])
            if len(new) > space:
                if is_whole:
                    position.scan, position.after = _BEGIN, _sort_key(new[space - 1][0]) if space else b""
                elif sum(len(mark) for mark, _ in new[space:]) <= _MARKS_BYTES:
                    position.marks = [mark for mark, _ in new[space:]] + position.marks
                else:
                    found += self._cells(position.place, new[space:])
                    if position.scan is None and not position.marks:
                        position = self._following(position)
                self.cursor = None if position is None else position.pack()
                break
            if position.scan is None and not position.marks:
                position = self._following(position)
        return found

    def _following(self, position: _Position) -> _Position | None:
        return self._start(bisect_left(self._places, position.place) + 1)

    def _start(self, at: int) -> _Position | None:
        """Return the beginning of the first place that has cells, from the place with index ``at`` on."""
        for first in range(at, len(self._keys), _COUNTED_AT_ONCE):
            some = self._keys[first : first + _COUNTED_AT_ONCE]
            for offset, count in enumerate(self._store.call(*[(b"HLEN", key) for key in some])):
                if count:
                    return _Position(self._places[first + offset])
        return None

    def _take(self, position: _Position, wanted: int) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return about ``wanted`` cells of ``position.place``, as mark and record, and move the position on.

        The second result is True if these are all remaining cells of the place, sorted by `_sort_key`.
        """
        key = self._keys[bisect_left(self._places, position.place)]
        if position.marks:
            marks, position.marks = position.marks[:wanted], position.marks[wanted:]
            records: Sequence[Any] = self._store.one((b"HMGET", key, *marks))
            pairs = zip(marks, records, strict=True)
            return [(mark, record) for mark, record in pairs if record is not None], False
        if position.scan is None:
            return [], False
        began, after = position.scan, position.after
        cursor, flat = self._store.one((b"HSCAN", key, began, b"COUNT", wanted))
        position.scan, position.after = None if cursor == _BEGIN else cursor, b""
        # So many cells may have been added since the last page that this scan returns only a part of them.
        # Then some cells are shown twice.
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = sorted((_sort_key(mark), mark, record) for mark, record in pairs)
        return [one[1:] for one in found if one[0] > after], began == cursor == _BEGIN

    def _cells(self, place: _Place, found: Iterable[tuple[bytes, bytes]]) -> list[FailedCell]:
        return [_failed_cell(self._catalog, place.table, place.observer, *pair) for pair in found]
