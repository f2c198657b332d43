"""Import pyarrow where it is needed, because it takes long to import; the Arrow types of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from percolator_core.errors import ConfigurationError
from percolator_core.schema.types import column_type

if TYPE_CHECKING:
    import pyarrow as pa


def pyarrow() -> Any:
    """Import and return pyarrow. Raises ConfigurationError if it or numpy is not installed."""
    try:
        import numpy  # noqa: F401, ICN001
        import pyarrow as pa
    except ImportError as error:
        raise ConfigurationError("this needs Arrow: pip install pyarrow numpy") from error
    return pa


def arrow_type(type_name: str) -> pa.DataType:
    """Return the Arrow type for a column type. Raises as `pyarrow`, and ValueError for an unknown type."""
    pa = pyarrow()
    kind = column_type(type_name)
    if kind.digits:
        return pa.decimal128(kind.digits, kind.places)
    if kind.name == "datetime":
        return pa.timestamp("us", tz="UTC")
    names = {"bool": "bool_", "int": "int64", "float": "float64", "bytes": "binary", "date": "date32"}
    return getattr(pa, names.get(kind.name, "string"))()


def batch_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows of values as a batch of the schema."""
    pa = pyarrow()
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
