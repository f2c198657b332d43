"""Links between the pages of a chain, for any names of tables, rows and columns.

The name of a table is a part of the path. Some proxies and browsers change a quoted slash, a percent sign or
two dots in a path. So the name is quoted with ``~`` instead of ``%``. Row keys and columns are in the query;
a column name that is too long for a link is replaced by its digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote, unquote, urlencode

from fastapi import Request

from percolator_core.notation.bytestext import show_bytes
from percolator_core.notation.typedtext import Rows, show_row
from percolator_core.schema.definitions import TableDefinition
from percolator_core.ui.host import ShownChain

LONGEST: Final = 6_000
"""A row key in a link has at most this many characters, because servers and proxies accept URLs of 8 KiB."""

LONGEST_COLUMN: Final = 1_500
"""A column's name, quoted for a link, has at most this many characters; a digest replaces a longer name."""

_DIGEST: Final = "sha256:"
"""The beginning of a digest that replaces a column's name."""

SHOWN: Final = 90
"""A page shows at most this many characters of a row key."""


class Links:
    """Links to the pages of one chain."""

    def __init__(
        self, request: Request, chain: ShownChain, definitions: Iterable[TableDefinition] = ()
    ) -> None:
        self.here = f"{request.scope.get('root_path', '')}/{chain.name}"
        self.redact = chain.redact
        self._definitions = {one.name: one for one in definitions}
        self._rows = Rows(self._definitions.values())

    def to(self, path: str, **query: object) -> str:
        """Link to a page of the chain; None and empty values are left out of the query.

        A list gives its name several times.
        """
        given = [(name, value) for name, value in query.items() if value not in (None, "", [])]
        return f"{self.here}/{path}" + (
            f"?{urlencode(given, doseq=True, quote_via=quote, safe='')}" if given else ""
        )

    def observer(self, name: str) -> str:
        """Link to an observer's page."""
        return self.to(f"observers/{quote(name, safe='')}")

    def worker(self, name: str) -> str:
        """Link to the log of a worker."""
        return self.to(f"workers/{quote(name, safe='')}")

    def table(self, table: str, page: str = "", **query: object) -> str:
        """Link to a table's page, or to a page below it."""
        return self.to(f"tables/{quoted(table)}" + (f"/{page}" if page else ""), **query)

    def row(
        self, table: str, row: bytes, *, column: str = "", after: str = "", **query: object
    ) -> str | None:
        """Link to a row's page; None if the key is too long for a link, or if the table does not exist."""
        key = self.key(table, row)
        if key is None or table not in self._definitions:
            return None
        return self.table(
            table, "row", key=key, column=column_token(column), after=column_token(after), **query
        )

    def cell(self, table: str, row: bytes, column: str) -> str | None:
        """Link to a cell's versions, or to the row's page if the column is notify-only."""
        definition = self._definitions.get(table)
        if definition is not None and column in definition.notify_only:
            return self.row(table, row)
        return self.row(table, row, column=column)

    def trace(self, table: str, row: bytes, column: str | None = None, **query: object) -> str | None:
        """Link to a row's trace."""
        key = self.key(table, row)
        token = None if column is None else column_token(column)
        return None if key is None else self.to("trace", table=table, row=key, column=token, **query)

    def key(self, table: str, row: bytes) -> str | None:
        """Return a row key as form fields and links contain it; None if it is too long."""
        if len(row) > LONGEST:
            return None
        definition = self._definitions.get(table)
        try:
            key = show_row(definition, row) if definition is not None else show_bytes(row)
        except ValueError:
            key = show_bytes(row)
        return key if len(quote(key)) <= LONGEST else None

    def shown(self, table: str, row: bytes, longest: int = SHOWN) -> str:
        """Return a row key in the form that pages show."""
        return self._rows.show(table, row, longest) or "(the empty key)"


def column_token(column: str) -> str:
    """Return the text that stands for a column in links: its name, or a digest if the name is too long."""
    if len(quote(column, safe="")) <= LONGEST_COLUMN:
        return column
    return _DIGEST + hashlib.sha256(column.encode()).hexdigest()


def column_of(token: str, names: Callable[[], Iterable[str]]) -> str:
    """Invert `column_token`; ``names`` returns the names of columns, and is called only for a digest."""
    if not token.startswith(_DIGEST):
        return token
    return next((name for name in names() if token in {name, column_token(name)}), token)


def quoted(table: str) -> str:
    """Quote a name for a path."""
    once = quote(table, safe="").replace("~", "%7E")
    if not once.strip("."):
        once = once.replace(".", "%2E")
    return once.replace("%", "~")


def unquoted(part: str) -> str:
    """Invert `quoted`."""
    return unquote(re.sub("~(?=[0-9A-F]{2})", "%", part))
