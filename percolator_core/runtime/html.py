"""HTML of objects for notebooks: tables of bounded size, with every text escaped.

The tables set no colour, so they have the colours of the notebook, light or dark.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from itertools import chain, islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_ROWS: Final = 100
"""A table has at most this many rows."""

MOST_COLUMNS: Final = 30
"""A table has at most this many columns."""

LONGEST_TEXT: Final = 200
"""A cell shows at most this many characters of a value."""

_LEFT: Final = ' style="text-align:left"'
_CLASSES: Final = "percolator tex2jax_ignore mathjax_ignore"
"""Without the last two classes, a notebook would show text between dollar signs as mathematics."""


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return a table. Of too many rows or columns it has only the first ones, and a line that says so."""
    found = list(islice(rows, MOST_ROWS + 1))
    shown = columns[:MOST_COLUMNS]
    parts = [f'<div class="{_CLASSES}">', f"<strong>{_text(title)}</strong>" if title else "", "<table>"]
    parts.append(f"<thead><tr>{''.join(f'<th{_LEFT}>{_text(name)}</th>' for name in shown)}</tr></thead>")
    parts.append("<tbody>")
    parts += (f"<tr>{''.join(map(_cell, row[:MOST_COLUMNS]))}</tr>" for row in found[:MOST_ROWS])
    parts.append("</tbody></table>")
    if len(found) > MOST_ROWS:
        parts.append(f"<p>only the first {MOST_ROWS} rows are shown</p>")
    if len(columns) > MOST_COLUMNS:
        parts.append(f"<p>only the first {MOST_COLUMNS} of {len(columns):,} columns are shown</p>")
    return "".join([*parts, "</div>"])


class ShownInNotebook:
    """A dataclass with this base is shown in a notebook as tables of its fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        plain, tables = [], []
        for name, value in _fields(self):
            records = _records(value)
            if records is None:
                plain.append((name, value))
            else:
                tables.append(html_records(records, name))
        head = html_table(["", ""], plain, type(self).__name__) if plain else ""
        return head + "".join(tables)


class Rows(Iterator[T]):
    """The rows that a read returns, in order; each is fetched when it is needed.

    A notebook shows the first rows, which stay in the iterator.
    """

    __slots__ = ("_begun", "_rows")

    def __init__(self, rows: Iterator[T]) -> None:
        self._rows = rows
        self._begun = False

    def __iter__(self) -> Iterator[T]:  # noqa: PYI034 - see below
        # A loop over the inner iterator is as fast as one without this class.
        self._begun = True
        return self._rows

    def __next__(self) -> T:
        self._begun = True
        return next(self._rows)

    def _repr_html_(self) -> str:
        if self._begun:
            return html_table([], [], "rows, of which some were taken: read them again to see them")
        first = list(islice(self._rows, MOST_ROWS + 1))
        self._rows = chain(first, self._rows)
        return html_records([_record(row) for row in first])


def html_records(records: Sequence[Mapping[str, object]], title: str = "") -> str:
    """Return a table with a column for each name in the records."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    return html_table(columns, ([one.get(name, "") for name in columns] for one in records), title)


def _record(row: Any) -> Mapping[str, object]:
    """Return a row as a mapping: a row is a mapping, a model, or a pair of a row key and its cells."""
    if isinstance(row, tuple):
        return {"row": row[0], **row[1]}
    return row if isinstance(row, Mapping) else dict(row)


def _fields(shown: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(shown, field.name)) for field in fields(shown) if field.repr]


def _records(value: object) -> list[dict[str, object]] | None:
    """Return the rows of a table for a collection of dataclasses, or for one; None for any other value."""
    if isinstance(value, Mapping):
        named = [({"": name}, one) for name, one in islice(value.items(), MOST_ROWS + 1)]
    elif isinstance(value, tuple | list):
        named = [({}, one) for one in value[: MOST_ROWS + 1]]
    else:
        named = [({}, value)]
    if not named or not all(is_dataclass(one) for _, one in named):
        return None
    return [name | dict(_fields(one)) for name, one in named]


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td>{_text(value)}</td>" if number else f"<td{_LEFT}>{_text(value)}</td>"


def _text(value: object) -> str:
    """Return the beginning of a value's text, escaped."""
    if isinstance(value, bytes):
        text = value[: LONGEST_TEXT + 1].decode(errors="backslashreplace")
    elif isinstance(value, list | tuple | dict | set | frozenset):
        text = reprlib.repr(value)
    else:
        text = "null" if value is None else str(value)
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 1] + "…"
    return escape("".join(one if one.isprintable() else repr(one)[1:-1] for one in text))
