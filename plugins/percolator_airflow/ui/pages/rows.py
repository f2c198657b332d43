"""Rows: looking through a table, and one row with all that it has been, now or as of any time still kept."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response

from percolator_airflow.ui.access import ChainWithData
from percolator_airflow.ui.chains import declared
from percolator_airflow.ui.links import LONGEST as LONGEST_KEY
from percolator_airflow.ui.links import Links, unquoted
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.stores import stores
from percolator_airflow.ui.values import LINE, LONGEST, Shown, show, show_line
from percolator_core.browsing import RowsPage, browse, page_before
from percolator_core.condition import Condition
from percolator_core.errors import LockTimeout, SnapshotTooOld, UnknownColumn
from percolator_core.notation.amounts import count_of, show_size
from percolator_core.notation.bytestext import parse_bytes
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import parse_length, parse_time, show_time
from percolator_core.notation.typedtext import key_of, parse_row, raw_typed, show_typed
from percolator_core.rowhistory import CellHistory, RowHistory, row_history
from percolator_core.schema.expression import parse
from percolator_core.status import locks

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.model import Version
    from percolator_core.observers import Chain
    from percolator_core.schema.definition import TableDefinition

router = APIRouter()

SIZES: Final = (20, 50, 200)
"""How many rows a page may have."""

QUICK: Final = (("now", ""), ("5 min ago", "5m"), ("1 h ago", "1h"), ("1 day ago", "1d"))
"""Times that are one click away."""

CELLS: Final = 8
"""Cells of a raw row that the list shows; its page has all."""

COLUMNS: Final = 50
"""Columns of a row on its page."""

VERSIONS: Final = 8
"""Versions of each cell on the page of its row, and of the one that is asked for."""
MORE_VERSIONS: Final = 100


@dataclass(frozen=True, slots=True)
class When:
    """The time that a page shows: what was asked for, as a timestamp (µs) once it is known; None is now."""

    asked: str
    at: int | None
    now: int
    is_forced: bool = False
    """Whether a transaction that is committing is why it is not the time that was asked for."""

    @property
    def ago(self) -> float:
        """Seconds back from now."""
        return 0.0 if self.at is None else (self.now - self.at) / 1e6

    @property
    def link(self) -> str:
        """As links have it: always the same moment."""
        return "" if self.at is None else str(self.at)


@dataclass(frozen=True, slots=True)
class ListedRow:
    """A row in the list; ``cells`` are those shown, ``more`` how many others it has."""

    key: str
    link: str | None
    cells: tuple[tuple[str, Shown], ...]
    more: int


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A version of a cell, newest first; ``seen`` is the one that the page's time sees."""

    at: int
    ago: float
    value: Shown
    link: str | None
    seen: bool


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell on the page of its row."""

    column: str
    type: str
    value: Shown | None
    state: str
    written: int | None
    ago: float | None
    versions: tuple[ShownVersion, ...]
    more: str | None
    download: str | None
    size: int
    observers: tuple[str, ...]
    trace: str | None
    locked: bool


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
    limit: int = 50,
) -> Response:
    """A page of the table's rows."""
    db, name = stores.of(chain), unquoted(table)
    db.catalog.keep_fresh()
    definition = db.catalog.table(name).definition
    links = Links(request, chain, [definition])
    size = min(max(limit, 1), SIZES[-1])
    found, when, problem = RowsPage(()), When(at, None, db.store.now()), ""
    begin: bytes | None = None
    try:
        when = _when(db, at)
        start = _prefix(definition, prefix)
        if before:
            begin = page_before(db, name, _place(before), prefix=start, limit=size)
        elif after:
            begin = _place(after)
        filters = _filters(definition, where)
        try:
            found = browse(db, db.snapshot(when.at), name, start=begin, prefix=start, limit=size, **filters)
        except LockTimeout:
            # Somebody is committing for long: what was there before is known without waiting for him.
            when = replace(when, at=_before_locks(db), is_forced=True)
            found = browse(db, db.snapshot(when.at), name, start=begin, prefix=start, limit=size, **filters)
    except (NotationError, ValueError, UnknownColumn, SnapshotTooOld, LockTimeout) as error:
        problem = _sentence(error)
    kept = {"prefix": prefix, "where": where, "at": when.link, "limit": "" if size == 50 else size}
    first_key = found.rows[0][0] if found.rows else begin
    return page(
        request,
        "rows.html",
        chain=chain,
        tab="tables",
        status=400 if problem else 200,
        table=definition,
        links=links,
        when=when,
        quick=_quick(links, name, when, "rows", prefix=prefix, where=where, limit=kept["limit"]),
        problem=problem,
        asked={"prefix": prefix, "where": where, "at": at, "limit": size},
        sizes=SIZES,
        has_prefix=_has_text_key(definition),
        rows=[_listed(definition, links, row, cells, when) for row, cells in found.rows],
        columns=_list_columns(definition),
        in_time=found.in_time,
        reached=links.shown(name, found.following) if found.following and not found.in_time else "",
        is_first=not begin,
        first=links.table(name, "rows", **kept),
        previous=_beside(links, definition, "before", first_key if begin and not where else None, kept),
        following=_beside(links, definition, "after", found.following, kept),
    )


@router.get("/{name}/tables/{table}/row")
def row(  # noqa: PLR0917 - what the form sends
    request: Request,
    chain: ChainWithData,
    table: str,
    key: str = "",
    at: str = "",
    column: str = "",
    after: str = "",
) -> Response:
    """One row: its cells at a time, and the versions of each."""
    db, name, known = stores.of(chain), unquoted(table), declared(chain)
    db.catalog.keep_fresh()
    definition = db.catalog.table(name).definition
    links = Links(request, chain, [definition])
    when, problem, found, raw = When(at, None, db.store.now()), "", None, b""
    try:
        raw = parse_row(definition, key)
        when = _when(db, at)
        only = [column] if column and column not in definition.key else None
        found = row_history(
            db,
            name,
            raw,
            at=when.at,
            columns=only,
            after=after or None,
            limit=COLUMNS,
            versions=MORE_VERSIONS if only else VERSIONS,
        )
    except (NotationError, ValueError, UnknownColumn, SnapshotTooOld) as error:
        problem = _sentence(error)
    at_link = when.link
    return page(
        request,
        "row.html",
        chain=chain,
        tab="tables",
        status=400 if problem else 200,
        table=definition,
        links=links,
        when=when,
        quick=_quick(links, name, when, "row", key=key, column=column),
        problem=problem,
        key=key,
        title=links.shown(name, raw) if not problem or raw else key[:90],
        asked={"at": at, "column": column},
        parts=_key_parts(definition, raw) if found is not None else [],
        found=found,
        cells=_cells(links, definition, known, raw, found, when, only=bool(column)) if found else [],
        marker=_marker(found, when) if found else [],
        behind=found and found.behind and links.row(name, raw, at=at_link, after=found.behind),
        whole=links.row(name, raw, at=at_link),
        trace=links.trace(name, raw),
        watched=any(of == name for of, _ in known.observed),
    )


@router.get("/{name}/tables/{table}/cell")
def cell(chain: ChainWithData, table: str, key: str, column: str, at: str = "") -> Response:
    """The bytes of one cell's value, as a file to be kept: a browser never shows it as a page."""
    db, name = stores.of(chain), unquoted(table)
    db.catalog.keep_fresh()
    definition = db.catalog.table(name).definition
    when = _when(db, at)
    raw = parse_row(definition, key)
    try:
        value = db.snapshot(when.at).get(name, raw, column)
    except SnapshotTooOld as error:
        raise HTTPException(410, _sentence(error)) from None
    except ValueError as error:
        raise NotationError(str(error)) from None
    if value is None:
        raise HTTPException(404, f"{name} has nothing in {column} of {key[:90]} at that time")
    kind = definition.by_name[column].type if definition.is_typed else "bytes"
    if definition.is_typed and kind not in {"bytes", "str", "json"}:
        from percolator_airflow.ui.values import decoded

        value = raw_typed(definition, column, decoded(definition, column, value))
    ending = {"json": "json", "bytes": "bin"}.get(kind, "txt")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{name}.{column}").strip("._") or "cell"
    filename = f"attachment; filename=\"{plain}.{ending}\"; filename*=UTF-8''{quote(plain)}.{ending}"
    return Response(
        value,
        media_type="application/octet-stream",
        headers={"Content-Disposition": filename, "X-Content-Type-Options": "nosniff"},
    )


# What was asked for.


def _when(db: Database, text: str) -> When:
    """The time that a text means: a moment, or a length of time ago."""
    now = db.store.now()
    try:
        moment = parse_time(text, "the time")
    except NotationError as error:
        try:
            moment = now - int(parse_length(text.removesuffix(" ago")).total_seconds() * 1e6)
        except (NotationError, OverflowError):
            raise NotationError(f"{error}, or 15m for a quarter of an hour ago") from None
    if isinstance(moment, datetime):
        moment = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    if moment is not None and moment < 1:
        raise NotationError(f"{text!r} is before 1970")
    return When(text, moment, now)


def _has_text_key(definition: TableDefinition) -> bool:
    """Whether the keys of rows begin with text or bytes, as they stand in the store."""
    return not definition.is_typed or definition.key_columns[0].type in {"str", "bytes"}


def _prefix(definition: TableDefinition, text: str) -> bytes | None:
    if text and not _has_text_key(definition):
        first = definition.key_columns[0]
        raise NotationError(f"keys of {definition.name} begin with {first.name}, {first.type}: use the filter")
    return parse_bytes(text) if text else None


def _before_locks(db: Database) -> int:
    """The newest time that no lock stands in the way of."""
    live = (lock.start_timestamp for lock in locks(db) if lock.owner_alive)
    return min(live, default=db.timestamp()) - 1


def _filters(definition: TableDefinition, where: str) -> dict[str, Any]:
    """What rows must meet, as `browse` takes it; NotationError for what cannot be read."""
    if not where.strip():
        return {}
    if definition.is_typed:
        try:
            return {"where": parse(where, definition)}
        except (ValueError, UnknownColumn) as error:
            # The lines behind the first one show the place with a caret.
            raise NotationError(f"{where!r}: {str(error).partition(chr(10))[0].removesuffix(':')}") from None
    conditions = []
    for part in re.split(r"\s+and\s+", where.strip()):
        try:
            one = Condition.parse(part, parse_bytes)
        except ValueError as error:
            raise NotationError(str(error)) from None
        # A column may be called `revision`, too: here there is no other.
        conditions.append(replace(one, value=str(one.value).encode()) if isinstance(one.value, int) else one)
    return {"conditions": conditions}


def _sentence(error: Exception) -> str:
    if isinstance(error, SnapshotTooOld):
        return (
            "That time is not known any more: garbage collection has dropped the versions of then. Choose a "
            "later time, or have the maintenance DAG keep more (keep)."
        )
    return str(error)


def _quick(links: Links, table: str, when: When, path: str, **kept: Any) -> list[tuple[str, str, bool]]:
    return [(name, links.table(table, path, at=at, **kept), at == when.asked) for name, at in QUICK]


# Rows in a list.


def _list_columns(definition: TableDefinition) -> list[str]:
    """The columns that the list has: of a typed table all but the key, of a raw one none in particular."""
    return [column.name for column in definition.value_columns]


def _listed(definition: TableDefinition, links: Links, row: bytes, cells: Any, when: When) -> ListedRow:
    names = list(cells) if definition.is_typed else sorted(cells)
    most = len(names) if definition.is_typed else CELLS
    length = max(24, LINE // max(1, len(names) // 2)) if definition.is_typed else LINE
    shown = tuple((name, show_line(definition, name, cells[name], length)) for name in names[:most])
    return ListedRow(
        links.shown(definition.name, row),
        links.row(definition.name, row, at=when.link),
        shown,
        len(names) - len(shown),
    )


def _beside(
    links: Links, definition: TableDefinition, way: str, key: bytes | None, kept: dict[str, Any]
) -> str | None:
    """The page from a key on, or in front of it; None where no link can carry it."""
    if key is None or len(key) > LONGEST_KEY:
        return None
    place = base64.urlsafe_b64encode(key).decode()
    return links.table(definition.name, "rows", **kept, **{way: place})


def _place(text: str) -> bytes:
    """The key in a link to another page, which may be one that no row has."""
    try:
        return base64.urlsafe_b64decode(text.encode())
    except (ValueError, binascii.Error):
        raise NotationError(f"{text[:80]!r} is no place between rows: go back to the first page") from None


# One row.


def _key_parts(definition: TableDefinition, row: bytes) -> list[tuple[str, str, str]]:
    """The columns of a typed row's key: name, type and value."""
    if not definition.is_typed:
        return []
    found = key_of(definition, row)
    return [
        (name, definition.by_name[name].type, show_typed(definition, name, value, 2000))
        for name, value in found.items()
    ]


def _cells(  # noqa: PLR0917
    links: Links,
    definition: TableDefinition,
    chain: Chain,
    row: bytes,
    found: RowHistory,
    when: When,
    *,
    only: bool,
) -> list[ShownCell]:
    return [_cell(links, definition, chain, row, one, when, only=only) for one in found.cells]


def _cell(  # noqa: PLR0917
    links: Links,
    definition: TableDefinition,
    chain: Chain,
    row: bytes,
    one: CellHistory,
    when: When,
    *,
    only: bool,
) -> ShownCell:
    table = definition.name
    column = definition.by_name.get(one.column)
    seen, observers = one.version, chain.observed.get((table, one.column), ())
    value = None if seen is None else seen.value
    if value is None and column is not None and seen is None:
        value = column.missing
    shown, state = None, _state(one, when)
    if not state:
        shown = show(definition, one.column, value, LONGEST)
    has_bytes = one.unread or (seen is not None and seen.value is not None)
    key = links.key(table, row)
    return ShownCell(
        column=one.column,
        type="" if column is None else column.type + (" or null" if column.nullable else ""),
        value=shown,
        state=state,
        written=None if seen is None else seen.commit_ts,
        ago=None if seen is None else (when.now - seen.commit_ts) / 1e6,
        versions=tuple(_version(links, definition, row, one, version, when) for version in one.versions),
        more=links.row(table, row, at=when.link, column=one.column) if one.more and not only else None,
        download=links.table(table, "cell", key=key, column=one.column, at=when.link)
        if has_bytes and key is not None
        else None,
        size=one.size,
        observers=tuple(observers),
        trace=links.trace(table, row, one.column) if observers else None,
        locked=one.locked,
    )


def _state(one: CellHistory, when: When) -> str:
    """What there is instead of a value."""
    if one.unread:
        return f"{show_size(one.size)}: too large to be shown here"
    if not one.versions:
        return "being written for the first time, and not committed"
    if one.version is None and one.more:
        return f"older than the {count_of(len(one.versions), 'version')} that are shown"
    if one.version is None and when.at is not None:
        return "not there yet"
    return "deleted" if one.version is not None and one.version.value is None else ""


def _version(  # noqa: PLR0917
    links: Links, definition: TableDefinition, row: bytes, one: CellHistory, version: Version, when: When
) -> ShownVersion:
    value = show_line(definition, one.column, version.value, 2 * LINE)
    if version.value is None:
        value = Shown("deleted", "", 0)
    return ShownVersion(
        version.commit_ts,
        (when.now - version.commit_ts) / 1e6,
        value,
        links.row(definition.name, row, at=version.commit_ts),
        version is one.version or version == one.version,
    )


def _marker(found: RowHistory, when: When) -> list[tuple[str, float, bool]]:
    """When a typed row was made and removed, newest first."""
    return [
        (show_time(one.commit_ts), (when.now - one.commit_ts) / 1e6, one.value is not None)
        for one in found.marker
    ]
