"""The quarantine: cells on which an observer failed as often as it may. Look at them, retry or discard them.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import encode_mark, failed_key, tablet_number
from percolator_core.layout.records import row_bytes
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import parse_row
from percolator_core.notifications.dirty import DirtyIndex, FailedCell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from percolator_core.database import Database
    from percolator_core.observers import Chain

__all__ = ["FailedCell", "Quarantine"]

_COUNTED_AT_ONCE: Final = 500
"""Places of which one call asks how many cells are there."""

_BEGIN: Final = b"0"
"""The cursor with which a scan begins."""

_CURSORS: Final = 2**64
"""Cursors of scans are numbers below this; Redis refuses any other."""


_LONGEST_MARK: Final = 200
"""Bytes of a mark that a cursor names by all of them: names of columns and keys of rows have up to 64 KiB."""

_MARKS_BYTES: Final = 2_000
"""Bytes of the marks in a cursor, at most: servers and proxies take URLs of 8 KiB."""


class _Place(NamedTuple):
    """Where an observer's cells of one tablet are; in the order of pages."""

    observer: str
    table: str
    number: int


@dataclass(slots=True)
class _Position:
    """How far pages have come: a place, its scan's cursor (None when over), and marks found but not shown.

    A scan brings some cells more than were asked for, and goes on behind them. Where it brings all of a place
    at once, they are in the order of their marks, and ``after`` is the last one shown (see `_sorted_by`): a
    cursor with hundreds of marks would be too long for a URL.
    """

    place: _Place
    scan: bytes | None = _BEGIN
    marks: list[bytes] = field(default_factory=list)
    after: bytes = b""

    def pack(self) -> str:
        """As text, for a URL."""
        scan = None if self.scan is None else self.scan.decode()
        marks = [base64.b64encode(mark).decode() for mark in self.marks]
        after = base64.b64encode(self.after).decode()
        return base64.urlsafe_b64encode(json.dumps([*self.place, scan, marks, after]).encode()).decode()

    @classmethod
    def unpack(cls, text: str) -> _Position:
        """The inverse of `pack`; ValueError for what no `pack` has made."""
        try:
            observer, table, number, scan, marks, after = json.loads(base64.urlsafe_b64decode(text.encode()))
            made = cls(
                _Place(str(observer), str(table), int(number)),
                None if scan is None else b"%d" % (int(scan) % _CURSORS),
                [base64.b64decode(mark, validate=True) for mark in marks],
                base64.b64decode(after, validate=True),
            )
        except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error):
            raise ValueError(
                "the cursor is none that a page gave: leave it out to begin with the first page"
            ) from None
        return made


class Quarantine:
    """The cells of a chain's observers that are in quarantine, in those of its tables that are there now."""

    def __init__(self, db: Database, chain: Chain) -> None:
        """Asks which tables there are.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        self._db = db
        self._chain = chain
        observed = {table for table, _ in chain.observed}
        self.tables = {one.name: one for one in db.tables() if one.name in observed}
        """The definitions of the observed tables that are there, by name."""
        self._observed = {
            column: tuple(names) for column, names in chain.observed.items() if column[0] in self.tables
        }

    def count(self) -> dict[str, int]:
        """Cells in quarantine by observer, of all observers of the chain; looks at none of them."""
        return dict.fromkeys(self._chain.observers, 0) | self._index(None).count_failed()

    def cells(
        self, observer: str | None = None, keys: Mapping[str, bytes] | None = None
    ) -> Iterator[FailedCell]:
        """The cells, in no order; of one observer, or of the row with that key in each table of ``keys``.

        Of rows that are named only their cells are looked up. One may come twice if the quarantine changes
        meanwhile; none that is there all the time is left out.

        Raises:
            ConfigurationError: the chain has no such observer.
        """
        index = self._index(observer)
        if keys is None:
            return index.failed()
        found = (cell for table, row in keys.items() for cell in self.find(table, row))
        return (cell for cell in found if observer in (None, cell.observer))

    def keys(self, text: str) -> dict[str, bytes]:
        """The row key that a text is (`percolator_core.notation`) in each table where it is one, for `cells`.

        Raises:
            NotationError: it is one in no table.
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
        """The cells of one row that are in quarantine, by observer; looked up, however many others there are.

        Raises:
            ValueError: the row is no key of that table.
        """
        key = row_bytes(row)
        watched = {column: names for column, names in self._observed.items() if column[0] == table}
        if not watched:
            return []
        index, handle = self._index(None), self._db.catalog.table(table)
        tag = handle.tag(key)
        observers = sorted({name for names in watched.values() for name in names})
        marks = [encode_mark(handle.encode(column), key) for _, column in sorted(watched)]
        replies = self._db.store.call(*[(b"HMGET", failed_key(tag, name), *marks) for name in observers])
        return [
            index.failed_cell(table, name, mark, record)
            for name, records in zip(observers, replies, strict=True)
            for mark, record in zip(marks, records, strict=True)
            if record is not None
        ]

    def page(
        self, limit: int, cursor: str | None = None, observer: str | None = None
    ) -> tuple[list[FailedCell], str | None]:
        """The next ``limit`` cells (1 or more), by observer, and the cursor behind them; None at the end.

        ``cursor`` is that of the page before, with the same ``observer``. What a page takes depends on its
        size, and on how many tablets there are, not on how many cells. A page that is not the last one may
        be short if its cells are put back meanwhile, and a cell may come twice; none that stays is left out.
        A page has some cells more if a cursor cannot carry them, because their columns or rows have long
        names.

        Raises:
            ValueError: the limit is below 1, or the cursor is none.
            ConfigurationError: the chain has no such observer.
        """
        if limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        pages = _Pages(self._db, self._index(observer))
        found = pages.after(None if cursor is None else _Position.unpack(cursor), limit)
        return found, pages.cursor

    def retry(self, cells: Iterable[FailedCell] | None = None, observer: str | None = None) -> int:
        """Have cells observed again, with all their attempts: those given, all of an observer, or all.

        Returns how many were put back; those that are not in quarantine any more do not count.

        Raises:
            ConfigurationError: the chain has no such observer.
            StoreUnavailable: the store does not answer. What was put back is put back: retry the rest.
        """
        return self._index(observer).retry(None if cells is None else list(cells))

    def discard(self, cells: Iterable[FailedCell]) -> int:
        """Forget cells: an observer sees them when they change again, or by a rerun. Returns how many.

        Each is judged by itself, at once: one that was put back meanwhile and failed anew stays, since that
        failure was not looked at, and one that has changed since it failed is observed as it would be anyway.

        Raises:
            StoreUnavailable: the store does not answer. What was forgotten is: discard the rest.
        """
        return self._index(None).discard(list(cells))

    def _index(self, observer: str | None) -> DirtyIndex:
        if observer is None:
            return DirtyIndex(self._db.client, self._observed)
        if observer not in self._chain.observers:
            raise ConfigurationError(
                f"{self._chain.name} has no observer {observer!r}: it has {', '.join(self._chain.observers)}"
            )
        watched = {column: (observer,) for column, names in self._observed.items() if observer in names}
        return DirtyIndex(self._db.client, watched)


def _sorted_by(mark: bytes) -> bytes:
    """The mark, or of a long one its beginning and a digest, which a cursor can carry."""
    if len(mark) <= _LONGEST_MARK:
        return mark
    return mark[:_LONGEST_MARK] + hashlib.sha1(mark, usedforsecurity=False).digest()


class _Pages:
    """Goes through all places, a page at a time; ``cursor`` is where it stopped."""

    def __init__(self, db: Database, index: DirtyIndex) -> None:
        self._store = db.store
        self._index = index
        tags = {
            _Place(name, table, tablet_number(tag)): tag
            for table, tag, names in index.places()
            for name in names
        }
        self._places = sorted(tags)
        self._keys = [failed_key(tags[place], place.observer) for place in self._places]
        self.cursor: str | None = None

    def after(self, position: _Position | None, limit: int) -> list[FailedCell]:
        """The next cells behind a position, None for the beginning."""
        at = 0 if position is None else bisect_left(self._places, position.place)
        if position is None or at == len(self._places) or self._places[at] != position.place:
            position = self._start(at)  # the table of that place was dropped
        found: list[FailedCell] = []
        while position is not None:
            # One more than the page has, so that its reader learns whether there are others.
            new, is_whole = self._take(position, limit + 1 - len(found))
            room = limit - len(found)
            found += [self._cell(position.place, mark, record) for mark, record in new[:room]]
            if len(new) > room:
                if is_whole:
                    position.scan, position.after = _BEGIN, _sorted_by(new[room - 1][0]) if room else b""
                elif sum(len(mark) for mark, _ in new[room:]) <= _MARKS_BYTES:
                    position.marks = [mark for mark, _ in new[room:]] + position.marks
                else:
                    found += [self._cell(position.place, mark, record) for mark, record in new[room:]]
                    if position.scan is None and not position.marks:
                        position = self._following(position)
                self.cursor = None if position is None else position.pack()
                break
            if position.scan is None and not position.marks:
                position = self._following(position)
        return found

    def _following(self, position: _Position) -> _Position | None:
        """The beginning of the next place where there are cells."""
        return self._start(bisect_left(self._places, position.place) + 1)

    def _start(self, at: int) -> _Position | None:
        """The beginning of the first place from a number on where there are cells."""
        for first in range(at, len(self._keys), _COUNTED_AT_ONCE):
            some = self._keys[first : first + _COUNTED_AT_ONCE]
            for offset, count in enumerate(self._store.call(*[(b"HLEN", key) for key in some])):
                if count:
                    return _Position(self._places[first + offset])
        return None

    def _take(self, position: _Position, wanted: int) -> tuple[list[tuple[bytes, bytes]], bool]:
        """About so many cells of a place, mark and record; moves the position behind them.

        Also whether they are all that the place has behind those that were shown, in order.
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
        # Cells that have become many meanwhile come in parts, and those behind this one are shown again.
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = sorted((_sorted_by(mark), mark, record) for mark, record in pairs)
        return [one[1:] for one in found if one[0] > after], began == cursor == _BEGIN

    def _cell(self, place: _Place, mark: bytes, record: bytes) -> FailedCell:
        return self._index.failed_cell(place.table, place.observer, mark, record)
