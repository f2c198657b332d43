"""Conversion of whole columns between Arrow and encoded values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from percolator_core.errors import ConfigurationError
from percolator_core.schema.types import ColumnType, column_type, shown

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_SIGN: Final = 1 << 63
_NAN: Final = 0x7FF8 << 48
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = tuple(
    (one.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    for one in (datetime.min, datetime.max)  # noqa: DTZ901
)
_DAYS: Final = tuple(one.toordinal() - _EPOCH.toordinal() for one in (date.min, date.max))


def pyarrow() -> Any:
    """Import and return pyarrow. Raises ConfigurationError if it or numpy is not installed."""
    try:
        import numpy  # noqa: F401, ICN001
        import pyarrow as pa
    except ImportError as error:
        raise ConfigurationError(f"this needs Arrow ({error}): install percolator-core[base]") from error
    return pa


def arrow_type(type_name: str) -> pa.DataType:
    """Return the Arrow type for the column type ``type_name``.

    Raises:
        ConfigurationError: pyarrow is not installed.
        ValueError: there is no such type.
    """
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


def of_values(kind: ColumnType, values: Sequence[bytes | None]) -> pa.Array:
    """Return the Arrow column of encoded values; None means null."""
    import numpy as np

    pa = pyarrow()
    if kind.width is None:
        return texts(kind, pa.array(values, pa.binary()))
    blank = bytes(kind.width)
    joined = b"".join([blank if value is None else value for value in values])
    valid = np.array([value is not None for value in values], bool)
    return of_bytes(kind, np.frombuffer(joined, np.uint8).reshape(-1, kind.width), valid)


def texts(kind: ColumnType, found: pa.Array) -> pa.Array:
    """Return the Arrow column of encoded text or bytes. Raises pyarrow.ArrowInvalid if text is not UTF-8."""
    pa = pyarrow()
    return found if kind.name == "bytes" else found.cast(pa.string())


def of_bytes(kind: ColumnType, found: Bytes, valid: Numbers | None = None) -> pa.Array:
    """Return the Arrow column of encoded values of a fixed width; each row of ``found`` is one value."""
    import numpy as np

    pa = pyarrow()
    mask = None if valid is None or bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if kind.name == "uuid":
        return _uuids(found, mask)
    values = _DECODED[_family(kind)](np.ascontiguousarray(found))
    return pa.Array.from_buffers(arrow_type(kind.name), len(found), [mask, pa.py_buffer(values)])


def _bools(found: Bytes) -> Numbers:
    import numpy as np

    return np.packbits(found[:, 0] != 0, bitorder="little")


def _ints(found: Bytes) -> Numbers:
    import numpy as np

    return found.view(">u8")[:, 0].astype(np.uint64) ^ np.uint64(_SIGN)


def _floats(found: Bytes) -> Numbers:
    import numpy as np

    words = found.view(">u8")[:, 0].astype(np.uint64)
    return np.where(words >= _SIGN, words ^ np.uint64(_SIGN), ~words)


def _days(found: Bytes) -> Numbers:
    import numpy as np

    return found.view(">u4")[:, 0].astype(np.uint32) ^ np.uint32(1 << 31)


def _decimals(found: Bytes) -> Numbers:
    import numpy as np

    words = found.view(">u8").astype(np.uint64)
    words[:, 0] ^= np.uint64(_SIGN)
    if words.shape[1] == 1:
        return np.stack([words[:, 0], (words[:, 0].view(np.int64) >> 63).view(np.uint64)], axis=1)
    return np.ascontiguousarray(words[:, ::-1])


_DECODED: Final[dict[str, Callable[[Any], Any]]] = {
    "bool": _bools,
    "int": _ints,
    "float": _floats,
    "datetime": _ints,
    "date": _days,
    "decimal": _decimals,
}

_TEXT_OF_UUID: Final = 36


def _uuids(found: Bytes, mask: Any) -> pa.Array:
    import numpy as np

    pa = pyarrow()
    digits = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
    pairs = digits[found].reshape(-1, 32)
    text = np.full((len(found), _TEXT_OF_UUID), ord("-"), np.uint8)
    for start, end, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        text[:, start + dashes : end + dashes] = pairs[:, start:end]
    offsets = np.arange(0, _TEXT_OF_UUID * len(found) + 1, _TEXT_OF_UUID, dtype=np.int32)
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(found), buffers)


class Refused(ValueError):
    """A value at ``position`` does not fit the column."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


def encoded(kind: ColumnType, nullable: bool, found: pa.Array) -> list[bytes | None]:
    """Return the encoded values of an Arrow column; None means null.

    Raises:
        Refused: a value does not fit.
        TypeError: the Arrow type does not fit the column's type.
    """
    pa = pyarrow()
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if not nullable and found.null_count:
        raise Refused(found.is_null().index(True).as_py(), "the value cannot be null")
    if pa.types.is_null(found.type):
        return [None] * len(found)
    if not any(getattr(pa.types, f"is_{one}")(found.type) for one in _ACCEPTED[_family(kind)]):
        raise TypeError(f"{found.type} is no {kind.name}: cast the column to {arrow_type(kind.name)}")
    if pa.types.is_timestamp(found.type) and found.type.tz is None:
        raise TypeError(f"{found.type} has no time zone: cast the column to {arrow_type(kind.name)}")
    if not len(found):
        return []  # an empty column may have no buffers
    how = _ENCODED.get(f"decimal {kind.width}" if kind.digits else kind.name)
    if how is None:
        return _one_by_one(kind, found)
    try:
        # An integer that is too large for an exact float is rounded, as `ColumnType.encode` does.
        whole = kind.name == "float" and pa.types.is_integer(found.type)
        values = how(found.cast(arrow_type(kind.name), safe=not whole))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _one_by_one(kind, found)
    return _with_nulls(values, found) if found.null_count else values


def stored(kind: ColumnType, found: pa.Array) -> list[bytes | None]:
    """Return the encoded values from which an Arrow column was made; None means null."""
    if kind.width is not None:
        return encoded(kind, True, found)
    texts: list[bytes | None] = found.cast(pyarrow().binary()).to_pylist()
    return texts


_TEXT: Final = ("string", "large_string", "string_view")
_ACCEPTED: Final = {
    "bool": ("boolean",),
    "int": ("integer",),
    "float": ("floating", "integer"),
    "str": _TEXT,
    "bytes": ("binary", "large_binary", "binary_view", "fixed_size_binary"),
    "datetime": ("timestamp",),
    "date": ("date",),
    "decimal": ("decimal", "integer"),
    "uuid": (*_TEXT, "binary", "fixed_size_binary"),
    "json": _TEXT,
}


def _family(kind: ColumnType) -> str:
    return "decimal" if kind.digits else kind.name


def _with_nulls(values: list[bytes | None], found: pa.Array) -> list[bytes | None]:
    return [
        value if valid else None
        for value, valid in zip(values, found.is_valid().to_numpy(zero_copy_only=False).tolist(), strict=True)
    ]


def _one_by_one(kind: ColumnType, found: pa.Array) -> list[bytes | None]:
    """Encode values one by one, for types that Arrow lacks, or to find the value that does not fit."""
    read = _READ.get(kind.name)
    values: list[bytes | None] = []
    for position, scalar in enumerate(found):
        try:
            value = scalar.as_py()
            values.append(None if value is None else kind.encode(read(value) if read else value))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise Refused(position, str(error)) from None
    return values


def _uuid(value: str | bytes) -> UUID:
    return UUID(value) if isinstance(value, str) else UUID(bytes=value)


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(value)} is no JSON: {error}") from None


def _time(value: Any) -> Any:
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{value} has nanoseconds: round it to microseconds")
    return value


_READ: Final[dict[str, Callable[[Any], Any]]] = {"uuid": _uuid, "json": _json, "datetime": _time}


def _raw(found: pa.Array, dtype: str, width: int = 1) -> Numbers:
    """Return the memory of a column's values; the value of a null is arbitrary."""
    import numpy as np

    values = np.frombuffer(found.buffers()[1], dtype)
    return values[found.offset * width : (found.offset + len(found)) * width]


def _cut(words: Numbers, width: int) -> list[bytes | None]:
    """Split the memory of numbers into values of ``width`` bytes."""
    import numpy as np

    pieces: list[bytes | None] = np.frombuffer(words.tobytes(), f"V{width}").tolist()
    return pieces


def _check(name: str, found: pa.Array, values: Numbers, bounds: Sequence[int]) -> None:
    """Raise Refused for the first value out of bounds."""
    bad = ((values < bounds[0]) | (values > bounds[1])) & found.is_valid().to_numpy(zero_copy_only=False)
    if bad.any():
        raise Refused(int(bad.argmax()), f"the {name} is not within the years 1 to 9999 in UTC")


def _encode_bools(found: pa.Array) -> list[bytes | None]:
    pa = pyarrow()
    return _cut(_raw(found.fill_null(False).cast(pa.uint8()), "u1"), 1)


def _encode_ints(found: pa.Array) -> list[bytes | None]:
    import numpy as np

    return _cut((_raw(found, "u8") ^ np.uint64(_SIGN)).astype(">u8"), 8)


def float_words(found: pa.Array) -> Numbers:
    """Return the encoded values of floats as unsigned numbers; the number for a null is arbitrary."""
    import numpy as np

    # 0.0 and -0.0 are encoded alike, and so are all NaNs.
    with np.errstate(invalid="ignore"):
        numbers = _raw(found, "f8") + 0.0
    words = np.where(np.isnan(numbers), np.uint64(_NAN), numbers.view(np.uint64))
    return np.where(words >= _SIGN, ~words, words ^ np.uint64(_SIGN))


def _encode_floats(found: pa.Array) -> list[bytes | None]:
    return _cut(float_words(found).astype(">u8"), 8)


def _encode_texts(found: pa.Array) -> list[bytes | None]:
    import numpy as np

    _, offsets, data = found.buffers()
    ends = np.frombuffer(offsets, np.int32)[found.offset : found.offset + len(found) + 1].tolist()
    joined = b"" if data is None else data.to_pybytes()
    return [joined[start:end] for start, end in pairwise(ends)]


def _encode_datetimes(found: pa.Array) -> list[bytes | None]:
    _check("datetime", found, _raw(found, "i8"), _TIMES)
    return _encode_ints(found)


def _encode_dates(found: pa.Array) -> list[bytes | None]:
    import numpy as np

    _check("date", found, _raw(found, "i4"), _DAYS)
    return _cut((_raw(found, "u4") ^ np.uint32(1 << 31)).astype(">u4"), 4)


def _encode_small_decimals(found: pa.Array) -> list[bytes | None]:
    import numpy as np

    # 18 digits and the sign fit into the lower half of the 16 bytes.
    return _cut((_raw(found, "u8", 2)[::2] ^ np.uint64(_SIGN)).astype(">u8"), 8)


def _encode_decimals(found: pa.Array) -> list[bytes | None]:
    import numpy as np

    turned = _raw(found, "u8", 2).reshape(-1, 2)[:, ::-1] ^ np.array([_SIGN, 0], np.uint64)
    return _cut(turned.astype(">u8"), 16)


_ENCODED: Final[dict[str, Callable[[Any], list[bytes | None]]]] = {
    "bool": _encode_bools,
    "int": _encode_ints,
    "float": _encode_floats,
    "str": _encode_texts,
    "bytes": _encode_texts,
    "datetime": _encode_datetimes,
    "date": _encode_dates,
    "decimal 8": _encode_small_decimals,
    "decimal 16": _encode_decimals,
}
