"""Merge rows into the table, in one transaction of a Spark write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, PercolatorError, RowExists, RowNotFound
from percolator_core.layout.records import Version
from percolator_core.spark.tables.options import WriteOptions
from percolator_core.tables import rows as typed
from percolator_core.tables.indexes import described
from percolator_core.transaction.transaction import Transaction

Row: TypeAlias = tuple[bytes, Mapping[str, bytes | None]]
"""A row key, and the encoded cells to write; None means null."""

Verdict = Literal["new", "changed", "unchanged", "removed", "kept"]


def merge(
    options: WriteOptions, version: bytes, since: int | None, rows: Sequence[Row], t: Transaction
) -> Counter[str]:
    """Buffer the rows of one transaction as the options say; return the number of rows by outcome.

    ``version`` is the version of the table when the write began. A row that another client changed after
    ``since`` is newer than the write; if it is None, the write does not check for newer rows.

    Raises:
        ConfigurationError: the definition of the table has changed since the write began.
        RowExists, RowNotFound: the insert or update of a row failed.
        PercolatorError: another client has changed a row, and the option ``newer`` is ``fail``.
    """
    handle = t.handle_of(options.place.table)
    if handle.version != version:
        raise ConfigurationError(f"the table {handle.name!r} has changed since the write began: write again")
    return _Merge(handle, options, since)(rows, t)


class _Merge:
    """The merge of one transaction."""

    def __init__(self, handle: TableHandle, options: WriteOptions, since: int | None) -> None:
        self._handle = handle
        self._options = options
        self._since = since
        self._missing = {column.name: column.missing for column in handle.definition.columns}

    def __call__(self, given: Sequence[Row], t: Transaction) -> Counter[str]:
        rows = dict(given)
        mode = self._options.mode
        if mode == "upsert" and self._is_blind(given):
            for row, cells in rows.items():
                typed.upsert(t, self._handle, row, cells, {})
            return Counter(written=len(rows))
        handle = self._handle
        markers = dict(zip(rows, t.versions_of(handle, list(rows), [handle.marker]), strict=True))
        value_columns = [column.name for column in handle.definition.value_columns]
        names = value_columns if mode == "remove" else list(given[0][1])
        present = [row for row, (marker,) in markers.items() if marker and marker.value is not None]
        fields = [handle.columns[name] for name in names]
        found = dict(zip(present, t.versions_of(handle, present, fields), strict=True))
        counts: Counter[str] = Counter()
        for row, cells in rows.items():
            (marker,) = markers[row]
            if row in found:
                assert marker is not None
                stored = dict(zip(names, found[row], strict=True))
                counts[self._merge_present(t, row, cells, marker, stored)] += 1
            else:
                counts[self._merge_absent(t, row, cells, marker)] += 1
        return counts

    def _is_blind(self, given: Sequence[Row]) -> bool:
        """Return True if no read is necessary: all cells are given, and existing cells are overwritten."""
        return (
            self._since is None
            and not self._options.skip_unchanged
            and not self._handle.definition.indexes
            and len(given[0][1]) == len(self._handle.definition.value_columns)
        )

    def _merge_present(
        self,
        t: Transaction,
        row: bytes,
        cells: Mapping[str, bytes | None],
        marker: Version,
        found: Mapping[str, Version | None],
    ) -> Verdict:
        mode = self._options.mode
        newest = max([marker.commit_ts, *(version.commit_ts for version in found.values() if version)])
        is_newer = self._since is not None and newest > self._since
        if mode == "remove":
            if is_newer and self._must_keep(row):
                return "kept"
            typed.remove(t, self._handle, row)
            return "removed"
        changed = {name: value for name, value in cells.items() if value != self._value(name, found[name])}
        if mode == "insert":
            if is_newer and not changed:
                return "unchanged"  # an earlier attempt of this write has written the row
            raise RowExists(
                f"{self._handle.name} has a row {described(self._handle, row)}: write it with the option "
                "mode_of_rows=upsert or update"
            )
        if not changed and (is_newer or self._options.skip_unchanged):
            return "unchanged"
        if is_newer and self._must_keep(row):
            return "kept"
        new = changed if self._options.skip_unchanged else cells
        if self._handle.definition.indexes:
            typed.update(t, self._handle, row, new)
        else:
            typed.write(t, self._handle, row, new, {}, {})
        return "changed"

    def _merge_absent(
        self, t: Transaction, row: bytes, cells: Mapping[str, bytes | None], marker: Version | None
    ) -> Verdict:
        mode = self._options.mode
        if mode == "remove":
            return "unchanged"
        is_newer = self._since is not None and marker is not None and marker.commit_ts > self._since
        if is_newer and self._must_keep(row):
            return "kept"
        if mode == "update":
            raise RowNotFound(
                f"{self._handle.name} has no row {described(self._handle, row)}: write it with the option "
                "mode_of_rows=upsert or insert"
            )
        handle = self._handle
        if handle.definition.indexes:
            typed.upsert(t, handle, row, cells, {})
        else:
            given = {name: value for name, value in cells.items() if value is not None}
            typed.write(t, handle, row, given, {}, {}, is_new=True)
        return "new"

    def _must_keep(self, row: bytes) -> bool:
        """Return True if a newer row stays unchanged; raise PercolatorError if the write has to fail."""
        if self._options.newer == "fail":
            raise PercolatorError(
                f"{self._handle.name}, row {described(self._handle, row)}: another client has changed the "
                "row since the write began: write again, or use the option newer=keep or newer=overwrite"
            )
        return self._options.newer == "keep"

    def _value(self, name: str, version: Version | None) -> bytes | None:
        value = None if version is None else version.value
        return self._missing[name] if value is None else value
