"""The quarantine: cells whose observer failed in all attempts, with their errors; retry and discard."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from airflow.sdk.log import redact
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from percolator_airflow.ui.access import ChainWithData, EditableChain, MayEdit
from percolator_airflow.ui.chains import declared
from percolator_airflow.ui.links import Links
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.stores import stores
from percolator_airflow.ui.values import visible
from percolator_core.admin.quarantine import FailedCell, Quarantine
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of
from percolator_core.notation.error import NotationError

router = APIRouter()

PAGE: Final = 50
"""A page has at most this many cells."""

_LINE: Final = 240
"""The list shows at most this many characters of an error."""

_TRACEBACK: Final = 20_000
"""At most this many characters at the end of a traceback are shown."""

_TOGETHER: Final = 500
"""At most this many cells are read, and then discarded, at once."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A cell on the page; ``token`` identifies it in a request."""

    cell: FailedCell
    token: str
    row: str
    link: str | None
    trace: str | None
    error: str
    traceback: str
    ago: float


class Chosen(BaseModel):
    """The cells of a request: one cell, the ticked cells, or all cells of an observer.

    The observer ``*`` means all observers.
    """

    cell: str | None = None
    cells: list[str] = Field(default_factory=list, max_length=10 * PAGE)
    observer: str | None = None


@router.get("/{name}/quarantine")
def quarantine(  # noqa: PLR0917 - what the form sends
    request: Request,
    chain: ChainWithData,
    may_edit: MayEdit,
    observer: str = "",
    row: str = "",
    cursor: str = "",
) -> Response:
    """Show a page of the cells in quarantine, or the cells of one row."""
    db, known = stores.of(chain), declared(chain)
    found = Quarantine(db, known)
    definitions = db.tables()
    links = Links(request, chain, definitions)
    counts = found.count()
    cells, following, problem = [], None, ""
    try:
        if row:
            # A row needs no pages: it has at most one cell for each observer and observed column.
            cells = list(found.cells(observer or None, found.keys(row)))
        else:
            cells, following = found.page(PAGE, cursor or None, observer or None)
    except (ConfigurationError, ValueError) as error:
        problem = str(error)
    now = db.store.now()
    total = sum(counts.values())
    return page(
        request,
        "quarantine.html",
        chain=chain,
        tab="quarantine",
        status=400 if problem else 200,
        may_edit=may_edit,
        counts=counts,
        total=total,
        of=counts.get(observer, 0) if observer else total,
        observer=observer,
        row=row,
        problem=problem,
        cells=[_listed(cell, links, now) for cell in cells],
        is_first=not cursor,
        first=links.to("quarantine", observer=observer),
        following=following and links.to("quarantine", observer=observer, cursor=following),
        links=links,
    )


@router.post("/{name}/quarantine/retry")
def retry(chain: EditableChain, _data: ChainWithData, chosen: Chosen) -> dict[str, Any]:
    """Mark cells to be observed again; their attempts count from 0."""
    found = Quarantine(stores.of(chain), declared(chain))
    tokens = _tokens(chosen)
    if tokens is not None:
        with _understood():
            count = found.retry([_cell(token) for token in tokens])
    else:
        count = found.retry(observer=None if chosen.observer == "*" else chosen.observer)
    return {"said": f"{count_of(count, 'cell')} to be observed again", "count": count}


@router.post("/{name}/quarantine/discard")
def discard(chain: EditableChain, _data: ChainWithData, chosen: Chosen) -> dict[str, Any]:
    """Discard cells: they are not observed until they change again."""
    db = stores.of(chain)
    found = Quarantine(db, declared(chain))
    tokens = _tokens(chosen)
    if tokens is not None:
        asked = len(tokens)
        with _understood():
            count = found.discard([_cell(token) for token in tokens])
    else:
        observer = None if chosen.observer == "*" else chosen.observer
        asked, count = _discard_all(found, observer, until=db.timestamp())
    said = f"{count_of(count, 'cell')} discarded"
    if count < asked:
        said += f"; {count_of(asked - count, 'cell')} stayed because they have changed"
    return {"said": said, "count": count}


@contextmanager
def _understood() -> Iterator[None]:
    """Report an invalid cell, such as one of a column without a name, as a mistake in the request."""
    try:
        yield
    except ValueError as error:
        raise NotationError(str(error)) from None


def _discard_all(found: Quarantine, observer: str | None, *, until: int) -> tuple[int, int]:
    """Discard all cells page by page; return the numbers of found and of discarded cells.

    Cells that failed at ``until`` (µs) or later stay, because the user has not seen them.
    """
    cursor: str | None = None
    asked = count = 0
    while True:
        some, cursor = found.page(_TOGETHER, cursor, observer)
        cells = [cell for cell in some if cell.time < until]
        asked += len(cells)
        count += found.discard(cells)
        if cursor is None:
            return asked, count


def _tokens(chosen: Chosen) -> list[str] | None:
    """Return the tokens of the chosen cells; None means all cells of an observer.

    Raises NotationError if no cell is chosen.
    """
    if chosen.cell is not None:
        return [chosen.cell]
    if chosen.observer is not None:
        return None
    if not chosen.cells:
        raise NotationError("no cell is chosen: tick some")
    return chosen.cells


def _listed(cell: FailedCell, links: Links, now: int) -> Listed:
    return Listed(
        cell,
        _token(cell),
        links.shown(cell.table, cell.row),
        links.row(cell.table, cell.row),
        links.trace(cell.table, cell.row, cell.column),
        _line(redact(cell.error)),
        # Secrets are masked before the text is cut, because a part of a password would not be recognized.
        visible(redact(cell.traceback)[-_TRACEBACK:].rstrip()),
        (now - cell.time) / 1e6,
    )


def _line(error: str) -> str:
    line = visible(" ".join(error[: 4 * _LINE].split()))
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def _token(cell: FailedCell) -> str:
    row = base64.b64encode(cell.row).decode()
    return json.dumps([cell.observer, cell.table, row, cell.column, cell.time], ensure_ascii=False)


def _cell(token: str) -> FailedCell:
    """Return the cell of a token: its place, and the time of its failure."""
    try:
        observer, table, row, column, time = json.loads(token)
        names = [str(part) for part in (observer, table, column)]
        "".join(names).encode()  # a lone surrogate is not valid text
        key = base64.b64decode(row, validate=True)
        return FailedCell(names[0], names[1], key, names[2], "", 0, int(time), "")
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error):
        raise NotationError(f"{token[:80]!r} is not a cell of the page: reload the page") from None
