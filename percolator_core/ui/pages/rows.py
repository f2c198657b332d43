"""The rows of a table, page by page, filtered, now or at an earlier time."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from percolator_core.admin.browse import RowsPage, browse, orders, page_before
from percolator_core.admin.locks import locks
from percolator_core.errors import LockTimeout, SnapshotTooOld, UnknownColumn
from percolator_core.notation.bytestext import parse_bytes
from percolator_core.notation.error import NotationError
from percolator_core.schema.expression import RawFilter, parse
from percolator_core.schema.predicates import columns_of
from percolator_core.ui.access import ChainWithData
from percolator_core.ui.links import LONGEST as LONGEST_KEY
from percolator_core.ui.links import Links, column_token, unquoted
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores
from percolator_core.ui.values import Shown, show_line
from percolator_core.ui.when import When, choices, message, parse_when

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.schema.definitions import TableDefinition

router = APIRouter()

SECONDS: Final = 0.1
"""A page reads rows for this many seconds, also rows that the filter excludes. The next page continues."""

CONDITIONS: Final = 20
"""A filter of a raw table has at most this many comparisons, because each row is checked with all of them."""

CUT: Final = 4_096
"""This many bytes of a value are fetched for the list. The list shows fewer."""

SIZES: Final = (20, 50, 200)
"""A user can choose one of these numbers of rows for a page."""

COLUMNS: Final = 8
"""The list shows at most this many columns, if the user has chosen none; the page of a row shows all."""

OFFERED: Final = 100
"""The list offers at most this many columns."""

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class ListedColumn:
    """A column of the list. Numbers are aligned to the right."""

    name: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the rows: by a column with an index, or by their keys if ``column`` is None.

    In a link, ``-`` means the descending order: ``""``, ``-``, ``price``, ``-price``.
    """

    column: str | None
    reverse: bool

    @classmethod
    def parse(cls, sort: str) -> Order:
        """Invert `token`."""
        return cls(sort.removeprefix("-") or None, sort.startswith("-"))

    @property
    def token(self) -> str:
        """The order in a link."""
        return f"{'-' if self.reverse else ''}{self.column or ''}"

    @property
    def asked(self) -> dict[str, Any]:
        """The order as arguments of `browse`."""
        return {"order_by": self.column, "reverse": self.reverse}

    @property
    def state(self) -> str:
        """The value of ``aria-sort``."""
        return "descending" if self.reverse else "ascending"

    def pressed(self, column: str | None, *, is_number: bool) -> Order:
        """Return the order after a press on a header. The first press on numbers shows the highest one."""
        return Order(column, not self.reverse if column == self.column else is_number)


@router.get("/{name}/tables/{table}/rows")
def rows(  # noqa: PLR0917 - what the form sends
    request: Request,
    chain: ChainWithData,
    table: str,
    prefix: str = "",
    where: str = "",
    at: str = "",
    after: str = "",
    before: str = "",
    sort: str = "",
    limit: int = 50,
    column: Annotated[list[str], Query(max_length=OFFERED)] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Show a page of the table's rows."""
    until = time.monotonic() + SECONDS
    db, definition = stores.table(chain, unquoted(table))
    links = Links(request, chain, [definition, *_indexes(db, definition)])
    order = Order.parse(sort)
    size = min(max(limit, 1), SIZES[-1])
    found, when, problem = RowsPage(()), When(at, None, db.store.now()), ""
    begin = start = None
    by: tuple[str, ...] = ()
    try:
        when = parse_when(db, at)
        by = orders(db.snapshot(when.at), definition.name)
        start = _prefix(definition, prefix)
        begin = _place(before or after) if before or after else None
        asked = {"prefix": start, "limit": size, "cut": CUT} | order.asked | _filters(definition, where)
        find = partial(_found, db, definition.name, begin, asked, until, backwards=bool(before))
        when, (begin, found) = _unblocked(db, when, find)
    except (NotationError, ValueError, UnknownColumn, SnapshotTooOld, LockTimeout) as error:
        problem = message(error)
    same: dict[str, Any] = {"prefix": prefix, "where": where, "column": column, "sort": order.token}
    same["limit"] = "" if size == 50 else size
    kept: dict[str, Any] = same | {"at": when.link}
    return page(
        request,
        "rows.html",
        chain=chain,
        tab="tables",
        status=400 if problem else 200,
        table=definition,
        links=links,
        when=when,
        quick=choices(links, definition.name, when, "rows", **same),
        problem=problem,
        asked=same | {"at": when.shown, "limit": size},
        **_of_the_order(links, definition, order, by, kept),
        **_contents(definition, found, column),
        **_of_the_list(links, definition, (start, begin), found, kept),
    )


def _unblocked(
    db: Database, when: When, find: Callable[[int | None], tuple[bytes | None, RowsPage]]
) -> tuple[When, tuple[bytes | None, RowsPage]]:
    """Return the page at that time, or before a long commit that is in progress."""
    try:
        return when, find(when.at)
    except LockTimeout:
        before = replace(when, at=_before_locks(db), is_forced=True)
        return before, find(before.at)


def _of_the_list(
    links: Links,
    definition: TableDefinition,
    place: tuple[bytes | None, bytes | None],
    found: RowsPage,
    kept: dict[str, Any],
) -> dict[str, Any]:
    """Return the template's values about other pages. ``place`` has the prefix and this page's first key."""
    following, (start, begin) = found.following, place
    is_first = not begin or begin == start
    order = Order.parse(kept["sort"])
    place_of = next((one.table for one in definition.indexes if one.column == order.column), definition.name)
    has_previous = not is_first and not kept["where"] and not order.token
    return {
        "is_first": is_first,
        "sizes": SIZES,
        "has_prefix": _has_text_key(definition),
        "in_time": found.in_time,
        "reached": links.shown(place_of, following) if following and not found.in_time else "",
        "first": links.table(definition.name, "rows", **kept),
        "previous": _beside(links, definition, "before", begin if has_previous else None, kept),
        "following": _beside(links, definition, "after", following, kept),
    }


def _found(  # noqa: PLR0917
    db: Database,
    table: str,
    place: bytes | None,
    asked: dict[str, Any],
    until: float,
    at: int | None,
    *,
    backwards: bool,
) -> tuple[bytes | None, RowsPage]:
    """Return the page that begins at a place, or ends before it, and the first key of the page."""
    begin = place
    snapshot = db.snapshot(at)
    while True:
        if backwards and begin is not None:
            begin = page_before(db, table, begin, prefix=asked["prefix"], limit=asked["limit"])
        seconds = max(0.0, until - time.monotonic())
        found = browse(snapshot, table, start=begin, seconds=seconds, **asked)
        # Keys of deleted rows stay for a while. If only such keys are before the place, the page would show
        # the rows after the place again. So the loop goes back further.
        is_new = not backwards or place is None or bool(found.rows and found.rows[0][0] < place)
        if is_new or begin in {None, b"", asked["prefix"]} or time.monotonic() > until:
            return begin, found


def _indexes(db: Database, definition: TableDefinition) -> list[TableDefinition]:
    return [db.catalog.table(one.table).definition for one in definition.indexes]


def _of_the_order(
    links: Links, definition: TableDefinition, order: Order, by: tuple[str, ...], kept: dict[str, Any]
) -> dict[str, Any]:
    """Return the template's values about the order; ``by`` has the columns by which rows can be ordered."""
    column = definition.by_name.get(order.column or "")
    where = f"({kept['where']}) and {order.column} is null" if kept["where"] else f"{order.column} is null"
    nulls = kept | {"where": where, "sort": ""}

    def head(column: str | None, *, is_number: bool = False) -> tuple[str, str] | None:
        """Return the link of a column's header, and its ``aria-sort``; None if it has no order."""
        if column is not None and column not in by:
            return None
        then = order.pressed(column, is_number=is_number).token
        state = order.state if column == order.column else ""
        return links.table(definition.name, "rows", **kept | {"sort": then}), state

    return {
        "head_of": head,
        "orders": [
            (made.token, f"{made.column or 'key'}{', descending' if made.reverse else ''}")
            for one in (None, *by)
            for made in (Order(one, reverse=False), Order(one, reverse=True))
        ],
        "order": order,
        "by": list(by),
        "nulls": links.table(definition.name, "rows", **nulls) if column and column.nullable else None,
    }


def _has_text_key(definition: TableDefinition) -> bool:
    """Return True if the row keys begin with text or bytes in plain form."""
    return not definition.is_typed or definition.key_columns[0].type in {"str", "bytes"}


def _prefix(definition: TableDefinition, text: str) -> bytes | None:
    if text and not _has_text_key(definition):
        first = definition.key_columns[0]
        raise NotationError(
            f"the keys of {definition.name} begin with {first.name}, {first.type}: use the filter"
        )
    return parse_bytes(text) if text else None


def _before_locks(db: Database) -> int:
    """Return the newest time that can be read without waiting for a lock."""
    live = (lock.start_timestamp for lock in locks(db) if lock.owner_alive)
    return min(live, default=db.timestamp()) - 1


def _filters(definition: TableDefinition, where: str) -> dict[str, Any]:
    """Return the filter as an argument of `browse`. Raises NotationError for an unreadable one."""
    if not where.strip():
        return {}
    try:
        if definition.is_typed:
            return {"where": parse(where, definition)}
        found = RawFilter.of([where], definition.name)
    except (ValueError, UnknownColumn) as error:
        # The lines after the first one mark the place with a caret.
        raise NotationError(f"{where!r}: {str(error).partition(chr(10))[0].removesuffix(':')}") from None
    count = sum(1 for _ in columns_of(found.bound))
    if count > CONDITIONS:
        raise NotationError(f"a filter has at most {CONDITIONS} conditions, not {count}")
    return {"where": found}


def _names(definition: TableDefinition, found: RowsPage) -> list[str]:
    """Return the columns of the list; of a raw table those of the page's rows, the most frequent first."""
    if definition.is_typed:
        return [column.name for column in definition.value_columns]
    counts = Counter(name for _, cells in found.rows for name in cells)
    often = sorted(counts, key=lambda name: (-counts[name], name))
    return sorted(often[:COLUMNS]) + often[COLUMNS:]


def _contents(definition: TableDefinition, found: RowsPage, chosen: list[str]) -> dict[str, Any]:
    """Return the template's values about the rows and columns; ``chosen`` has tokens of columns."""
    names = _names(definition, found)
    shown = [name for name in names if column_token(name) in chosen] or names[:COLUMNS]
    rows = [
        (row, [_line(definition, name, cells[name]) if name in cells else None for name in shown])
        for row, cells in found.rows
    ]
    return {
        "rows": rows,
        "columns": [_column(name, [cells[at] for _, cells in rows]) for at, name in enumerate(shown)],
        "offered": [(name, column_token(name), name in shown) for name in names[:OFFERED]],
        "unoffered": max(0, len(names) - OFFERED),
    }


def _column(name: str, cells: list[Shown | None]) -> ListedColumn:
    texts = [cell.text for cell in cells if cell is not None and cell.text]
    return ListedColumn(name, bool(texts) and all(map(_NUMBER.fullmatch, texts)))


def _line(definition: TableDefinition, name: str, value: bytes | None) -> Shown:
    shown = show_line(definition, name, value)
    return shown if definition.is_typed or shown.size < CUT else replace(shown, at_least=True)


def _beside(
    links: Links, definition: TableDefinition, way: str, key: bytes | None, kept: dict[str, Any]
) -> str | None:
    """Link to the page after or before a key; None if the key is too long for a link."""
    if key is None or len(key) > LONGEST_KEY:
        return None
    place = base64.urlsafe_b64encode(key).decode()
    return links.table(definition.name, "rows", **kept, **{way: place})


def _place(text: str) -> bytes:
    """Decode the row key that a link to another page contains. The table may have no row with this key."""
    try:
        return base64.urlsafe_b64decode(text.encode())
    except (ValueError, binascii.Error):
        raise NotationError(f"{text[:80]!r} is not a place in the table: go back to the first page") from None
