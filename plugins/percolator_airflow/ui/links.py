"""Links between the pages of a chain, whatever tables, rows and columns are called.

A name of a table is any text, and stands in the path, where a quoted slash, a percent sign or two dots do not
survive every proxy and browser: so it is quoted with ``~`` for ``%``. Row keys and columns go into the query;
a digest stands for the name of a column that is too long for that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote, unquote, urlencode

from fastapi import Request

from percolator_airflow.ui.chains import KnownChain
from percolator_core.notation.bytestext import show_bytes
from percolator_core.notation.typedtext import Rows, show_row
from percolator_core.schema.definitions import TableDefinition

LONGEST: Final = 6_000
"""Characters of a row key that a link may carry: servers and proxies take URLs of 8 KiB."""

LONGEST_COLUMN: Final = 1_500
"""Characters of a column's name, quoted, that stand in a link beside a row key."""

_DIGEST: Final = "sha256:"
"""In front of the digest that stands for a longer name."""

SHOWN: Final = 90
"""Characters of a row key that are shown."""


class Links:
    """The pages of one chain, as links."""

    def __init__(
        self, request: Request, chain: KnownChain, definitions: Iterable[TableDefinition] = ()
    ) -> None:
        self.here = f"{request.scope.get('root_path', '')}/{chain.name}"
        self._definitions = {one.name: one for one in definitions}
        self._rows = Rows(self._definitions.values())

    def to(self, path: str, **query: object) -> str:
        """A page of the chain; what is None or empty is left out of the query."""
        given = {name: str(value) for name, value in query.items() if value not in {None, ""}}
        return f"{self.here}/{path}" + (f"?{urlencode(given, quote_via=quote, safe='')}" if given else "")

    def table(self, table: str, page: str = "", **query: object) -> str:
        """A table's page, or one below it."""
        return self.to(f"tables/{quoted(table)}" + (f"/{page}" if page else ""), **query)

    def row(
        self, table: str, row: bytes, *, column: str = "", after: str = "", **query: object
    ) -> str | None:
        """A row's page; None when no link can carry its key, or the table is not there."""
        key = self.key(table, row)
        if key is None or table not in self._definitions:
            return None
        return self.table(table, "row", key=key, column=carried(column), after=carried(after), **query)

    def cell(self, table: str, row: bytes, column: str) -> str | None:
        """A cell's versions; the row's page where the column holds no data."""
        definition = self._definitions.get(table)
        if definition is not None and column in definition.notify_only:
            return self.row(table, row)
        return self.row(table, row, column=column)

    def trace(self, table: str, row: bytes, column: str | None = None, **query: object) -> str | None:
        """A row's trace."""
        key = self.key(table, row)
        asked = None if column is None else carried(column)
        return None if key is None else self.to("trace", table=table, row=key, column=asked, **query)

    def key(self, table: str, row: bytes) -> str | None:
        """A row key as forms and links have it; None when it is too long."""
        if len(row) > LONGEST:
            return None
        definition = self._definitions.get(table)
        try:
            key = show_row(definition, row) if definition is not None else show_bytes(row)
        except ValueError:
            key = show_bytes(row)
        return key if len(quote(key)) <= LONGEST else None

    def shown(self, table: str, row: bytes, longest: int = SHOWN) -> str:
        """A row key for people."""
        return self._rows.show(table, row, longest) or "(the empty key)"


def carried(column: str) -> str:
    """A column as links have it: its name or, where that is too long for a link, a digest of it."""
    if len(quote(column, safe="")) <= LONGEST_COLUMN:
        return column
    return _DIGEST + hashlib.sha256(column.encode()).hexdigest()


def meant(column: str, names: Callable[[], Iterable[str]]) -> str:
    """The column that a link means; ``names`` are asked for only if it has a digest."""
    if not column.startswith(_DIGEST):
        return column
    return next((name for name in names() if column in {name, carried(name)}), column)


def quoted(table: str) -> str:
    """A name in a path."""
    once = quote(table, safe="").replace("~", "%7E")
    if not once.strip("."):
        once = once.replace(".", "%2E")
    return once.replace("%", "~")


def unquoted(part: str) -> str:
    """The name that a part of a path stands for."""
    return unquote(re.sub("~(?=[0-9A-F]{2})", "%", part))
