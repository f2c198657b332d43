"""Derive the type of a column from the annotation of a model's field."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from pydantic import AwareDatetime, FutureDate, FutureDatetime, PastDate, PastDatetime, TypeAdapter
from pydantic.fields import FieldInfo

from percolator_core.errors import ConfigurationError
from percolator_core.schema.types import ColumnType, column_type

Convert: TypeAlias = Callable[[Any], Any] | None
"""A conversion of values; None for no conversion."""

_KNOWN: Final[tuple[tuple[Any, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (datetime, "datetime"),
    (date, "date"),
    (UUID, "uuid"),
)
_ALIASES: Final[dict[Any, str]] = {
    AwareDatetime: "datetime",
    PastDatetime: "datetime",
    FutureDatetime: "datetime",
    PastDate: "date",
    FutureDate: "date",
}


def unwrapped(annotation: Any, metadata: list[Any]) -> tuple[Any, bool]:
    """Return the type inside ``Annotated`` and ``| None``, and True if None is allowed.

    The metadata of each ``Annotated`` is added to the list ``metadata``.
    """
    nullable = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *more = get_args(annotation)
            for one in more:  # pydantic does not unpack a Field(…) within ``| None``
                metadata += one.metadata if isinstance(one, FieldInfo) else [one]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif origin is Literal and None in get_args(annotation):
            nullable = True
            annotation = Literal[tuple(one for one in get_args(annotation) if one is not None)]
        elif origin in {Union, types.UnionType} and type(None) in get_args(annotation):
            others = [one for one in get_args(annotation) if one is not type(None)]
            nullable = True
            if len(others) > 1:
                return Union[tuple(others)], True  # noqa: UP007 - made of a list
            annotation = others[0]
        else:
            return annotation, nullable


def codec_of(
    annotation: Any, metadata: Iterable[Any], where: str, whole: Any
) -> tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the name of the column type, and the functions that convert a value to bytes and back.

    ``annotation`` and ``metadata`` are those of `unwrapped`; JSON values are those of ``whole``. ``where`` is
    for messages. The first function raises TypeError or ValueError with the reason.
    """
    name, convert, restore = type_of(annotation, metadata, where)
    if name == "json":
        return name, *json_codec(whole)
    kind = column_type(name)
    encode = kind.encode if convert is None else _composed(kind.encode, convert)
    return name, encode, kind.decode if restore is None else _composed(restore, kind.decode)


def value_codec(annotation: Any, where: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the functions that convert values of any type, also of a model, to bytes and back.

    Raises ConfigurationError if the type includes None.
    """
    metadata: list[Any] = []
    plain, nullable = unwrapped(annotation, metadata)
    if nullable:
        raise ConfigurationError(f"{where}: the values cannot be None: leave out None")
    _, encode, decode = codec_of(plain, metadata, where, annotation)
    return encode, decode


def _composed(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: outer(inner(value))


def type_of(annotation: Any, metadata: Iterable[Any], where: str) -> tuple[str, Convert, Convert]:
    """Return the name of the column type, and the conversions before encoding and after decoding."""
    if annotation in _ALIASES:
        return _ALIASES[annotation], None, None
    if get_origin(annotation) is Literal:
        return _of_values(get_args(annotation)), None, None
    if not isinstance(annotation, type) or get_origin(annotation) is not None:
        return "json", None, None
    if issubclass(annotation, Enum):
        return _of_values([member.value for member in annotation]), _value_of, annotation
    if issubclass(annotation, Decimal):
        return _decimal(metadata, where), None, None
    for python_type, name in _KNOWN:
        if issubclass(annotation, python_type):
            # A value of a subclass, for example of str, is stored as a plain str. After a read, the subclass
            # is called with this str.
            plain = annotation is python_type or python_type in {datetime, date, UUID}
            return name, None, None if plain else annotation
    return "json", None, None


def _value_of(member: Any) -> Any:
    return member.value if isinstance(member, Enum) else member


def _of_values(values: Iterable[Any]) -> str:
    kinds = {type(value) for value in values}
    for python_type, name in _KNOWN:
        if kinds == {python_type}:
            return name
    return "json"


def _decimal(metadata: Iterable[Any], where: str) -> str:
    digits = places = None
    for one in metadata:
        digits = getattr(one, "max_digits", None) or digits
        places = getattr(one, "decimal_places", None) if places is None else places
    if places is None:
        places = 18 if digits is None else 0
    name = f"decimal({38 if digits is None else digits},{places})"
    try:
        kind: ColumnType = column_type(name)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return kind.name


def json_codec(annotation: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return functions that convert a value to JSON and back.

    The first function raises ValueError if the second one would not restore the same value.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def encode(value: Any) -> bytes:
        try:
            encoded = adapter.dump_json(value, warnings="error")
            # Some values cannot be restored from their JSON, such as a secret, or a NaN in a list.
            same = adapter.validate_json(encoded) == value
        except ValueError as error:
            raise ValueError(f"the value cannot be written as JSON and restored: {error}") from None
        if not same:
            raise ValueError("the value cannot be restored from its JSON")
        return encoded

    return encode, adapter.validate_json
