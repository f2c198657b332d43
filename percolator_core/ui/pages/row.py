"""One row with its versions, now or at an earlier time; and its values as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response

from percolator_core.admin.row_history import CellHistory, columns_of, row_history
from percolator_core.errors import SnapshotTooOld, UnknownColumn, abbreviated
from percolator_core.notation.amounts import show_size
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import key_of, parse_row, raw_typed, show_typed
from percolator_core.ui.access import ChainWithData
from percolator_core.ui.declarations import declared
from percolator_core.ui.links import Links, column_of, column_token, unquoted
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores
from percolator_core.ui.values import LINE, Shown, decoded, show, show_line
from percolator_core.ui.when import When, choices, message, parse_when

if TYPE_CHECKING:
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
class ShownCell:
    """A cell on the page of its row. ``state`` is shown if there is no ``value``."""

    history: CellHistory
    value: Shown | None
    state: str
    observers: Sequence[str]


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
        cells=[_cell(definition, known, one, when) for one in found.cells] if found else [],
        line=partial(_line, definition),
        row=raw,
        row_key=links.key(name, raw),
        token_of=column_token,
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


def _cell(definition: TableDefinition, chain: Chain, one: CellHistory, when: When) -> ShownCell:
    value, state = None, _state(one, when)
    if not state:
        column, seen = definition.by_name.get(one.column), one.version
        missing = column.missing if column is not None else None
        value = show(definition, one.column, missing if seen is None else seen.value)
    return ShownCell(one, value, state, chain.observed.get((definition.name, one.column), ()))


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


def _line(definition: TableDefinition, column: str, value: bytes | None) -> Shown:
    """Return a version's value in the list of versions."""
    if value is None:
        return Shown("deleted", "", 0)
    return show_line(definition, column, value, 2 * LINE)
