"""Create instances of a model from stored values, and validate single values of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import SchemaValidator

from percolator_core.errors import UnknownColumn
from percolator_core.tables.model import Table


def assigned(model: type[Table], values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate some values of a row, each by its field; return the validated values.

    Validators of the whole model do not run, because some values of the row are unknown.

    Raises:
        UnknownColumn: the model has no such field.
        ValueError: (pydantic's ValidationError) the model refuses a value.
    """
    found: SchemaValidator | None = model.__dict__.get("_each")
    if found is None:
        found = _validator_of_fields(model)
        model._each = found  # noqa: SLF001 - a cache in the class
    for name in values:
        if name not in model.__pydantic_fields__:
            raise UnknownColumn(
                f"{model.__name__} has no column {name!r}: it has {', '.join(model.__pydantic_fields__)}"
            )
    checked: Any = {name: found.validate_assignment({}, name, value) for name, value in values.items()}
    return {name: checked[name][0][name] for name in values}


def _validator_of_fields(model: type[Table]) -> SchemaValidator:
    """Return a validator of the model's fields, without the validators of the whole model."""
    if not model.__pydantic_complete__:
        model.model_rebuild()
    schema: Any = model.__pydantic_core_schema__
    config, beside = None, None
    while schema["type"] != "model-fields":
        if schema["type"] == "definitions":
            beside = schema["definitions"]
        if schema["type"] == "definition-ref":
            schema = next(one for one in beside or () if one.get("ref") == schema["schema_ref"])
            continue
        config = schema.get("config", config)
        schema = schema["schema"]
    # In an instance a frozen field cannot be assigned, but an update of a stored row can change it.
    fields = {name: {**field, "frozen": False} for name, field in schema["fields"].items()}
    schema = {**schema, "fields": fields}
    if beside is not None:
        schema = {"type": "definitions", "schema": schema, "definitions": beside}
    return SchemaValidator(schema, config)


def made(model: type[Table], values: dict[str, Any], given: set[str]) -> Table:
    """Return an instance with these values by field name, without validation; other fields are not set.

    Pydantic's `model_construct` is not usable: it looks at aliases first, but an alias may be the name of
    another field. It also fails for a field with the name ``cls``.
    """
    instance = model.__new__(model)
    fields = model.__pydantic_fields__
    unread = () if len(values) == len(fields) else [name for name in fields if name not in values]
    if unread:
        values = {name: values[name] for name in fields if name in values}
    put = object.__setattr__
    put(instance, "__dict__", values)
    put(instance, "__pydantic_fields_set__", given)
    put(instance, "__pydantic_extra__", {} if model.model_config.get("extra") == "allow" else None)
    put(instance, "__pydantic_private__", None)
    if model.__pydantic_post_init__:
        for name in unread:
            if not fields[name].is_required():
                values[name] = fields[name].get_default(call_default_factory=True, validated_data=values)
        instance.model_post_init(None)
        for name in unread:
            # A column that was not read must not show a default, because the row may have another value.
            values.pop(name, None)
    return instance
