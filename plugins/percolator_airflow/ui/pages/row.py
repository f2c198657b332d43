"""One row with its versions, now or at an earlier time; and its values as files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response

from percolator_airflow.ui.access import ChainWithData
from percolator_airflow.ui.chains import declared
from percolator_airflow.ui.links import Links, column_of, column_token, unquoted
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.stores import stores
from percolator_airflow.ui.values import LINE, LONGEST, Shown, decoded, show, show_line
from percolator_airflow.ui.when import When, choices, message, parse_when
from percolator_core.admin.row_history import CellHistory, RowHistory, columns_of, row_history
from percolator_core.errors import SnapshotTooOld, UnknownColumn, abbreviated
from percolator_core.notation.amounts import show_size
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import key_of, parse_row, raw_typed, show_typed

if TYPE_CHECKING:
    from percolator_core.layout.records import Version
    from percolator_core.observers import Chain
    from percolator_core.schema.definitions import TableDefinition

router = APIRouter()

COLUMNS: Final = 50
"""The page of a row shows at most this many columns."""

VERSIONS: Final = 8
"""The page of a row shows at most this many versions of each cell."""
MORE_VERSIONS: Final = 100
"""The page of a single cell shows at most this many versions."""

_LONGEST_FILE: Final = 150
"""The name of a downloaded file has at most this many characters."""


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A version of a cell.

    ``seen`` is True if the page's snapshot sees the version. ``cold`` is True if the version is in the base.
    """

    at: int
    ago: float
    value: Shown
    link: str | None
    seen: bool
    cold: bool


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell on the page of its row; ``whole`` links to the full name if the name is shortened."""

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
    whole: str | None


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
    """Show the cells of a row, as of the requested time, and their versions."""
    name = unquoted(table)
    db, definition = stores.table(chain, name)
    known = declared(chain)
    links = Links(request, chain, [definition])
    when, problem, found, raw = When(at, None, db.store.now()), "", None, b""
    try:
        raw = parse_row(definition, key)
        when = parse_when(db, at)
        column, after = (column_of(one, lambda: columns_of(db, name, raw)) for one in (column, after))
        only = [column] if column and column not in definition.key else None
        bounds = {"limit": COLUMNS, "versions": MORE_VERSIONS if only else VERSIONS}
        found = row_history(db, name, raw, at=when.at, columns=only, after=after or None, **bounds)
    except (NotationError, ValueError, UnknownColumn, SnapshotTooOld) as error:
        problem = message(error)
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
        quick=choices(links, name, when, "row", key=key, column=column_token(column)),
        problem=problem,
        key=key,
        title=links.shown(name, raw) if not problem or raw else key[:90],
        asked={"at": when.shown, "column": column_token(column)},
        parts=_key_parts(definition, raw) if found is not None else [],
        found=found,
        cells=[
            _cell(links, definition, known, raw, one, when, only=bool(column))
            for one in (found.cells if found else ())
        ],
        marker=_marker(found, when) if found else [],
        behind=found and found.behind and links.row(name, raw, at=at_link, after=found.behind),
        whole=links.row(name, raw, at=at_link),
        trace=links.trace(name, raw),
        observed=any(of == name for of, _ in known.observed),
    )


@router.get("/{name}/tables/{table}/cell")
def cell(chain: ChainWithData, table: str, key: str, column: str, at: str = "") -> Response:
    """Send the bytes of a cell's value as a file; a browser saves it and never shows it as a page."""
    name = unquoted(table)
    db, definition = stores.table(chain, name)
    when = parse_when(db, at)
    raw = parse_row(definition, key)
    column = column_of(column, lambda: columns_of(db, name, raw))
    try:
        value = db.snapshot(when.at).get(name, raw, column)
    except SnapshotTooOld as error:
        raise HTTPException(410, message(error)) from None
    except ValueError as error:
        raise NotationError(str(error)) from None
    if value is None:
        raise HTTPException(404, f"{abbreviated(column)} of {key[:90]} in {name} has no value at that time")
    kind = definition.by_name[column].type if definition.is_typed else "bytes"
    if definition.is_typed and kind not in {"bytes", "str", "json"}:
        value = raw_typed(definition, column, decoded(definition, column, value))
    ending = {"json": "json", "bytes": "bin"}.get(kind, "txt")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{name}.{column}").strip("._")[:_LONGEST_FILE] or "cell"
    filename = f"attachment; filename=\"{plain}.{ending}\"; filename*=UTF-8''{quote(plain)}.{ending}"
    return Response(
        value,
        media_type="application/octet-stream",
        headers={"Content-Disposition": filename, "X-Content-Type-Options": "nosniff"},
    )


def _key_parts(definition: TableDefinition, row: bytes) -> list[tuple[str, str, str]]:
    """Return the columns of a typed row's key: name, type and value."""
    if not definition.is_typed:
        return []
    found = key_of(definition, row)
    return [
        (name, definition.by_name[name].type, show_typed(definition, name, value, 2000))
        for name, value in found.items()
    ]


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
        download=links.table(table, "cell", key=key, column=column_token(one.column), at=when.link)
        if has_bytes and key is not None
        else None,
        size=one.size,
        observers=tuple(observers),
        trace=links.trace(table, row, one.column) if observers else None,
        locked=one.locked,
        whole=links.row(table, row, at=when.link, column=one.column)
        if one.column != abbreviated(one.column)
        else None,
    )


def _state(one: CellHistory, when: When) -> str:
    """Return the text that a cell shows in place of its value; '' if the cell shows its value."""
    if one.unread:
        return f"{show_size(one.size)}: too large for this page"
    if not one.versions:
        return "first write in progress, not committed"
    if one.unsettled:
        return "unknown until a committing transaction has ended"
    if one.version is None and when.at is not None:
        return "not written yet"
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
        version.is_of_base,
    )


def _marker(found: RowHistory, when: When) -> list[tuple[str, float, str]]:
    """Return the times when a typed row was inserted or deleted, newest first, each with the word to show.

    The base has only the time of the row's newest change, so the word for that time is "there".
    """
    return [
        (
            show_time(one.commit_ts),
            (when.now - one.commit_ts) / 1e6,
            "deleted" if one.value is None else "there" if one.is_of_base else "inserted",
        )
        for one in found.marker
    ]
