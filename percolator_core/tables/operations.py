"""The typed methods of snapshots and transactions: find, select, insert, upsert, update, remove."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from percolator_core.catalog.catalog import Tables
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.key_ranges import check_limit
from percolator_core.runtime.html import Rows
from percolator_core.schema.predicates import Predicate, bind
from percolator_core.store import Store
from percolator_core.tables import rows
from percolator_core.tables.binding import Binding, Cells, assigned, binding_of, model_of, table_name
from percolator_core.tables.indexes import Writer
from percolator_core.tables.lookup import ByIndex, by_index, choose, found_rows
from percolator_core.tables.model import Table
from percolator_core.tables.query import Query, Selector

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=Table)


class TypedReads(Selector):
    """The reads of typed tables; `Snapshot` inherits them.

    The argument ``table`` is a model or a name. With a model, rows are instances of the model. With a name,
    rows are dicts of Python values.
    """

    __slots__ = ()

    _handles: Tables

    @property
    def _store(self) -> Store:
        """The store."""
        raise NotImplementedError

    def _fixed(self) -> Tables:
        """Fix the snapshot's timestamp, and return the tables of that time."""
        raise NotImplementedError

    def values(self, handle: TableHandle, row: bytes, fields: Iterable[ColumnFields]) -> list[bytes | None]:
        """Return the values of some cells of one row."""
        return self.values_of([(handle, row, list(fields))])[0]

    def own_rows(self, table: str) -> Collection[bytes]:  # noqa: ARG002
        """Return the rows of a table that this transaction has written."""
        return ()

    def handle_of(self, table: str) -> TableHandle:
        """Return a table by name. Raises UnknownTable."""
        return self._handles[table]

    @overload
    def find(self, table: type[M], /, **key: Any) -> M | None: ...

    @overload
    def find(self, table: str, /, **key: Any) -> dict[str, Any] | None: ...

    def find(self, table: type[Table] | str, /, **key: Any) -> Any:
        """Return the row with that key, or None.

        ``t.find(Document, url="http://a")``; a composite key needs all its columns.

        Raises:
            UnknownTable, UnknownColumn: there is no such table, or a name is no column of its key.
            ConfigurationError: the table is raw, the model does not match it, or a column of the key is
            missing.
            TypeError, ValueError: a value is not of its column's type.
            LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.get`.
        """
        binding = self._binding(table)
        row, columns = binding.key(key), binding.columns
        cells = rows.read(self, binding.handle, row, binding.value_columns(columns))
        return None if cells is None else binding.decode(row, cells, columns)

    @overload
    def select(
        self,
        table: type[M],
        where: Predicate | bool | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[M]: ...

    @overload
    def select(
        self,
        table: str,
        where: Predicate | bool | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[dict[str, Any]]: ...

    def select(
        self,
        table: type[Table] | str,
        where: Predicate | bool | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Rows[Any]:
        """Yield the rows for which ``where`` is true, in the order of their keys; None means all rows.

        ``t.select(Document, where=(Document.page_rank > 0.5) & (Document.url >= "a"), columns=["url"])``. The
        store evaluates the predicate. Conditions on key columns limit the tablets and keys to read. An index
        is used if it finds few enough rows. Only the ``columns`` are read; other fields of an instance are
        not set. Rows are fetched in bounded steps during the iteration.

        Raises:
            UnknownTable, UnknownColumn, ConfigurationError: as `find`.
            TypeError, ValueError: ``where`` is no predicate, or compares a column with a value that the
            column cannot have; or ``limit`` is no int, or below 0.
            LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.get`, also during the iteration.
        """
        if limit is not None:
            check_limit(limit, 0)
        binding = self._binding(table, fixed=True)
        wanted = binding.chosen(columns)
        query = _query(binding, where, wanted)
        if limit == 0:
            return Rows(iter(()))
        found = found_rows(self, query, limit=limit, reverse=reverse)
        return Rows(map(partial(_decoded, binding, wanted), found))

    def explain(
        self, table: type[Table] | str, where: Predicate | bool | None = None, limit: int | None = None
    ) -> str:
        """Return a text that names the tablets, or the index, that `select` would use for these rows.

        Raises as `select`.
        """
        binding = self._binding(table, fixed=True)
        return str(choose(self, _query(binding, where, ()), limit))

    def to_arrow(
        self,
        table: type[Table] | str,
        where: Predicate | bool | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows for which ``where`` is true as a ``pyarrow.Table``, in no particular order.

        pandas (``.to_pandas()``), Polars (``polars.from_arrow``) and DuckDB (by the name of the Python
        variable) read this table. An index is used as in `select`.

        Raises:
            ConfigurationError: pyarrow is not installed.
            Others: as `select`.
        """
        from percolator_core.tables.arrow_values import pyarrow

        pa = pyarrow()  # if pyarrow is not installed, raise ConfigurationError before the next import
        from percolator_core.tables.arrow import arrow_schema, of_found, read_batches

        binding = self._binding(table, fixed=True)
        query = _query(binding, where, binding.chosen(columns))
        plan = choose(self, query, None)
        batches: Iterable[Any]
        if isinstance(plan, ByIndex):
            batches = (batch for found in by_index(self, plan) for batch in of_found(query, found))
        else:
            own = frozenset(self.own_rows(query.handle.name))
            batches = read_batches(self, query, plan.pieces, own)
        return pa.Table.from_batches(batches, schema=arrow_schema(query.columns))

    def _binding(self, table: type[Table] | str, *, fixed: bool = False) -> Binding:
        """Return the binding; ``fixed`` fixes the snapshot first, for reads in several steps."""
        tables = self._fixed() if fixed else self._handles
        return binding_of(tables[table_name(table)], model_of(table))


class TypedWrites(TypedReads, Writer):
    """The writes of typed tables; `Transaction` inherits them."""

    __slots__ = ()

    def insert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Add a row: ``t.insert(Document(url="a"))``, or by values, ``t.insert("documents", url="a")``.

        Raises:
            RowExists: a row has the same key, or the same value in a unique column.
            UnknownTable, UnknownColumn: there is no such table or column.
            ConfigurationError: the table is raw, the model does not match it, or a column of the key is
            missing.
            TypeError, ValueError: a value does not fit its column, or is missing; the message names row,
            field and reason. Nothing is written.
            LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.get`.
        """
        binding, key, cells, _ = self._encoded(row, values)
        rows.insert(self, binding.handle, key, cells)

    def upsert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Add a row, or change the existing row with the same key.

        In an existing row this changes only the fields that were set: ``Document(url=…, page_rank=1.0)`` does
        not change the contents. If all fields are set and the table has no index, nothing is read first.
        Raises as `insert`, but an existing key is no error.
        """
        binding, key, cells, given = self._encoded(row, values)
        rows.upsert(self, binding.handle, key, given, cells)

    def update(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Change those fields of an existing row that were set.

        In an instance from a read, these are the fields that were assigned after the read. Without an
        instance, ``t.update(Document, url="a", page_rank=1.0)`` needs the key and the changed values.

        Raises:
            RowNotFound: there is no row with this key.
            Others: as `insert`.
        """
        binding, key, given = self._changed(row, values)
        rows.update(self, binding.handle, key, given)

    def remove(self, table: type[Table] | str, /, **key: Any) -> bool:
        """Remove a row; return False if the row does not exist. Raises as `find`."""
        binding = self._to_write(table)
        return rows.remove(self, binding.handle, binding.key(key))

    def _encoded(
        self, row: Table | type[Table] | str, values: Mapping[str, Any]
    ) -> tuple[Binding, bytes, Cells, Cells]:
        """Return the binding, the key, all cells, and the cells that were set."""
        if not isinstance(row, str | type):
            _no_values_beside(row, values)
        elif not isinstance(row, str):
            row, values = row(**values), {}
        binding = self._to_write(row if isinstance(row, str) else type(row))
        key, cells = binding.encode(values) if isinstance(row, str) else binding.encode(row.__dict__)
        given = values if isinstance(row, str) else row.model_fields_set
        binding.must_be_whole(key, cells)
        return binding, key, cells, {name: cells[name] for name in cells if name in given}

    def _changed(
        self, row: Table | type[Table] | str, values: Mapping[str, Any]
    ) -> tuple[Binding, bytes, Cells]:
        """Return the binding, the key, and the cells that were set."""
        if isinstance(row, Table):
            _no_values_beside(row, values)
            names = {*row.model_fields_set, *self._binding(type(row)).definition.key}
            values = {name: value for name, value in row.__dict__.items() if name in names}
            row = type(row)
        elif not isinstance(row, str):
            values = assigned(row, values)
        binding = self._to_write(row)
        return binding, *binding.encode(values)

    def _to_write(self, table: type[Table] | str) -> Binding:
        binding = self._binding(table)
        indexed = binding.definition.index_of
        if indexed:
            name = binding.definition.name
            raise ConfigurationError(f"{name} is an index of {indexed}: write to {indexed}")
        if binding.handle.view:
            binding.definition.refuse_of_view()
        return binding


def _no_values_beside(row: object, values: Mapping[str, Any]) -> None:
    if not isinstance(row, Table):
        raise TypeError(f"{row!r} is no row: give an instance of a model, or a table and values")
    if values:
        raise TypeError(f"{next(iter(values))} is given in addition to a row: assign it to the row")


def _query(binding: Binding, where: Predicate | bool | None, columns: Sequence[str]) -> Query:
    definition = binding.definition
    predicate = None if where is None else bind(cast("Predicate", where), definition)
    return Query(binding.handle, tuple(definition.by_name[name] for name in columns), predicate)


def _decoded(binding: Binding, columns: Sequence[str], found: tuple[bytes, Sequence[bytes | None]]) -> Any:
    row, values = found
    return binding.decode(row, dict(zip(columns, values, strict=True)), columns)
