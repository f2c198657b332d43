"""The quarantine: cells whose observer failed in all attempts, grouped by error; retry and discard."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from percolator_core.admin.quarantine import FailedCell, Quarantine
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of
from percolator_core.notation.error import NotationError
from percolator_core.runtime.batches import batched
from percolator_core.ui.access import ChainWithData, EditableChain, MayEdit
from percolator_core.ui.declarations import declared
from percolator_core.ui.links import Links
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores
from percolator_core.ui.values import visible

router = APIRouter()

PAGE: Final = 200
"""A page has at most this many cells."""

_LINE: Final = 240
"""The list shows at most this many characters of an error."""

_TRACEBACK: Final = 20_000
"""At most this many characters at the end of a traceback are shown."""

_TOGETHER: Final = 500
"""At most this many cells are read, and then retried or discarded, at once."""

_OPEN: Final = 3
"""The rows of a group are shown at once if they are at most this many."""


_COMPARED: Final = 400
"""Errors are compared by this many characters at their beginning."""

_VARYING: Final = re.compile(r"""'[^']*'|"[^"]*"|\b0x[0-9a-f]+\b|\w*\d\w*""")
"""The parts of a message that differ from row to row: quoted texts, and words with digits."""


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of an observer that failed with the same error, newest first.

    ``key`` identifies the group in a request. ``rows`` has the cells of each row. ``is_varied`` is True if
    the messages differ in quoted texts or numbers.
    """

    observer: str
    key: str
    is_varied: bool
    cells: tuple[FailedCell, ...]
    rows: tuple[tuple[FailedCell, ...], ...]


class Chosen(BaseModel):
    """The cells of a request: one cell, the ticked cells, a group, or all cells of an observer.

    ``like`` is the group's key and observer, with a colon between them. The observer ``*`` means all.
    """

    cell: str | None = None
    cells: list[str] = Field(default_factory=list, max_length=10 * PAGE)
    like: str | None = None
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
        now=db.store.now(),
        groups=grouped(cells),
        error_of=partial(_error, links),
        traceback_of=partial(_traceback, links),
        token_of=_token,
        most_open=_OPEN,
        is_whole=not cursor and following is None,
        is_first=not cursor,
        first=links.to("quarantine", observer=observer),
        following=following and links.to("quarantine", observer=observer, cursor=following),
        links=links,
    )


@router.post("/{name}/quarantine/retry")
def retry(chain: EditableChain, _data: ChainWithData, chosen: Chosen) -> dict[str, Any]:
    """Mark cells to be observed again; their attempts count from 0."""
    db = stores.of(chain)
    found = Quarantine(db, declared(chain))
    tokens = _tokens(chosen)
    if tokens is not None:
        with _understood():
            count = found.retry([_cell(token) for token in tokens])
    elif chosen.like is not None:
        count = sum(found.retry(some) for some in _like(found, chosen.like, until=db.timestamp()))
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
    elif chosen.like is not None:
        asked = count = 0
        for some in _like(found, chosen.like, until=db.timestamp()):
            asked += len(some)
            count += found.discard(some)
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


def _like(found: Quarantine, like: str, *, until: int) -> Iterator[list[FailedCell]]:
    """Yield the cells of a group in portions, of the whole quarantine; see `_discard_all` for ``until``."""
    key, _, observer = like.partition(":")
    if observer not in found.count():
        raise NotationError(f"{like[:80]!r} is not a group of the page: reload the page")
    cells = (cell for cell in found.cells(observer) if cell.time < until and key_of(cell) == key)
    return batched(cells, _TOGETHER)


def _tokens(chosen: Chosen) -> list[str] | None:
    """Return the tokens of the chosen cells; None means all cells of a group or of an observer.

    Raises NotationError if no cell is chosen.
    """
    if chosen.cell is not None:
        return [chosen.cell]
    if chosen.like is not None or chosen.observer is not None:
        return None
    if not chosen.cells:
        raise NotationError("no cell is chosen: tick some")
    return chosen.cells


def pattern(error: str) -> str:
    """Return the beginning of an error, with an ellipsis in place of each part that differs between rows."""
    return _VARYING.sub("…", error[:_COMPARED])


def key_of(cell: FailedCell) -> str:
    """Return the key of the cell's group."""
    text = f"{cell.observer}\0{pattern(cell.error)}".encode(errors="replace")
    return hashlib.sha256(text).hexdigest()[:16]


def grouped(cells: Iterable[FailedCell]) -> list[Group]:
    """Group cells by observer and error; the group with the most cells is first."""
    by_key: dict[str, list[FailedCell]] = {}
    for cell in cells:
        by_key.setdefault(key_of(cell), []).append(cell)
    groups = [_group(key, sorted(some, key=lambda one: -one.time)) for key, some in by_key.items()]
    return sorted(groups, key=lambda group: (-len(group.cells), group.observer, group.key))


def _group(key: str, cells: list[FailedCell]) -> Group:
    rows: dict[tuple[str, bytes], list[FailedCell]] = {}
    for cell in cells:
        rows.setdefault((cell.table, cell.row), []).append(cell)
    is_varied = any(cell.error != cells[0].error for cell in cells)
    return Group(cells[0].observer, key, is_varied, tuple(cells), tuple(map(tuple, rows.values())))


def _error(links: Links, cell: FailedCell) -> str:
    """Return the cell's error in one line."""
    line = visible(" ".join(links.redact(cell.error)[: 4 * _LINE].split()))
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def _traceback(links: Links, cell: FailedCell) -> str:
    # Secrets are masked before the text is cut, because a part of a password would not be recognized.
    return visible(links.redact(cell.traceback)[-_TRACEBACK:].rstrip())


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
