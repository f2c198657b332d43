"""Show the tables of a chain or a store as a diagram or JSON Schema: ``schema``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.options import OptionalChainPath, StoreOptions, load_chain
from percolator_core.cli.output import Failure
from percolator_core.notation.amounts import count_of
from percolator_core.notation.typedtext import json_value, show_typed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.observers import Chain
    from percolator_core.schema.definitions import Column, TableDefinition
    from percolator_core.tables.model import Table


_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class _Described:
    """A table with its model, if known, and the defaults of its columns as text."""

    definition: TableDefinition
    model: type[Table] | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)


def schema(
    path: OptionalChainPath = None,
    form: Annotated[
        Literal["text", "mermaid", "json"], typer.Option("--format", help="text, mermaid or json.")
    ] = "text",
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--json-schema",
            metavar="FOLDER",
            help="Write JSON Schemas into this folder: one for the rows of each typed table and, for a "
            "chain, those by which an editor completes and checks its YAML.",
        ),
    ] = None,
    *,
    store: StoreOptions,
) -> None:
    """Draw the tables of a chain or, without PATH, of the store.

    For a chain, the command imports the chain's models and needs no store.
    """
    output = outputs.current()
    chain = None if path is None else load_chain(path)
    title, found = _of_store(store) if chain is None else _of_chain(chain)
    if json_schema is not None:
        _write_schemas(json_schema, found, chain)
        return
    data = {**title, "tables": [table_data(one.definition, one.defaults) for one in found]}
    name = next(iter(title.values()))
    if output.as_json or form == "json":
        output.result(data, json.dumps(data, ensure_ascii=False, indent=2))
    elif form == "mermaid":
        output.raw(_mermaid(found).encode())
    else:
        boxes = [part for one in found for part in ("", _box(one))]
        output.result(data, Text(f"{name}: {count_of(len(found), 'table')}"), *boxes)


def _of_chain(chain: Chain) -> tuple[dict[str, str], list[_Described]]:
    return {"chain": chain.name}, [
        _Described(one, model, _defaults(one, model))
        for one in chain.tables
        for model in [chain.models.get(one.name)]
    ]


def _of_store(store: StoreOptions) -> tuple[dict[str, str], list[_Described]]:
    with store.existing() as db:
        # Each index is shown with its table.
        found = [one for one in db.tables() if not one.index_of]
        return {"namespace": db.namespace}, [_Described(one, None, _defaults(one, None)) for one in found]


def _defaults(definition: TableDefinition, model: type[Table] | None) -> dict[str, str]:
    """Return the default of each column, as text.

    Without a model, only a column that was added later has a default: its value in older rows.
    """
    from percolator_core.schema.types import column_type
    from percolator_core.tables.model import fields_of

    found: dict[str, str] = {}
    for column in definition.shown_columns:
        packed = None
        if model is None:
            packed = column.missing
        else:
            info = model.model_fields[column.name]
            if info.default_factory is not None:
                found[column.name] = f"{getattr(info.default_factory, '__name__', '…')}()"
            elif not info.is_required() and info.default is not None:
                packed = fields_of(model)[column.name].encode(info.default)
        if packed is not None:
            value = column_type(column.type).decode(packed)
            found[column.name] = show_typed(definition, column.name, value, 40) or "''"
    return found


def table_data(definition: TableDefinition, defaults: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a table definition for JSON."""
    plain: dict[str, Any] = {
        "name": definition.name,
        "tablets": definition.tablets,
        "notify_only": list(definition.notify_only),
    }
    if not definition.is_typed:
        return plain
    columns = [
        {"name": one.name, "type": one.type, "nullable": one.nullable}
        | ({"default": defaults[one.name]} if defaults and one.name in defaults else {})
        for one in definition.shown_columns
    ]
    indexes = [
        {"column": one.column, "unique": one.unique, "table": one.table} for one in definition.shown_indexes
    ]
    partition: list[dict[str, Any]] = [
        {"hash": list(rule.columns), "buckets": rule.buckets} for rule in definition.hashes
    ]
    if definition.ranges is not None:
        name = definition.ranges.column
        splits = [json_value(value) for value in _splits(definition)]
        partition.append({"range": name, "splits": splits})
    typed = {"columns": columns, "key": list(definition.key), "partition": partition, "indexes": indexes}
    return plain | typed | ({"index_of": definition.index_of} if definition.index_of else {})


def partition_text(definition: TableDefinition) -> str:
    """Return the partition rules of a typed table as one line."""
    parts = [f"hash({', '.join(rule.columns)}) in {rule.buckets}" for rule in definition.hashes]
    if definition.ranges is not None:
        name = definition.ranges.column
        splits = [show_typed(definition, name, value, 20) for value in _splits(definition)]
        more = [f"… {len(splits) - 4} more"] if len(splits) > 4 else []
        parts.append(
            f"range({name}) at {', '.join([*splits[: 4 if more else None], *more]) or 'nothing yet'}"
        )
    return ", ".join(parts)


def _splits(definition: TableDefinition) -> list[Any]:
    from percolator_core.schema.types import column_type

    rule = definition.ranges
    if rule is None:
        return []
    decode = column_type(definition.by_name[rule.column].type).decode
    return [decode(split) for split in rule.splits]


def _box(one: _Described) -> RenderableType:
    """Return a framed table: its columns, then its partition and its notify-only columns."""
    from rich.console import Group
    from rich.panel import Panel

    definition = one.definition
    parts: list[RenderableType] = []
    if definition.is_typed:
        shown = outputs.table("column", "type", "key", "null", "default", "index")
        for column in definition.shown_columns:
            shown.add_row(*_column_cells(one, column))
        parts += [shown, ""]
    tablets = count_of(definition.tablets, "tablet")
    how = partition_text(definition) if definition.is_typed else "hash of the row key, cells of bytes"
    parts.append(Text(f"{tablets}: {how}", style="dim"))
    if definition.notify_only:
        parts.append(Text(f"notify-only: {', '.join(definition.notify_only)}", style="dim"))
    if definition.index_of:
        parts.append(Text(f"index of {definition.index_of}", style="dim"))
    return Panel(Group(*parts), title=Text(definition.name, style="bold"), title_align="left", expand=False)


def _column_cells(one: _Described, column: Column) -> list[str]:
    definition = one.definition
    key = definition.key
    place = "key" if len(key) == 1 else f"key {key.index(column.name) + 1}" if column.name in key else ""
    indexes = [
        "unique" if rule.unique else "yes" for rule in definition.indexes if rule.column == column.name
    ]
    return [
        column.name,
        column.type,
        place if column.name in key else "",
        "null" if column.nullable else "",
        one.defaults.get(column.name, ""),
        ", ".join(indexes),
    ]


def _mermaid(found: Sequence[_Described]) -> str:
    """Return a mermaid entity-relationship diagram, which GitHub and many editors show."""
    lines = ["erDiagram"]
    for one in found:
        definition = one.definition
        title = definition.name.replace('"', "'")
        lines.append(f'    "{title}" {{')
        for column in definition.shown_columns:
            unique = any(rule.unique for rule in definition.indexes if rule.column == column.name)
            marks = "PK" if column.name in definition.key else "UK" if unique else ""
            kind = column.type.replace(",", "-")
            name = (
                column.name if _PLAIN.fullmatch(column.name) else re.sub(r"[^A-Za-z0-9_-]", "_", column.name)
            )
            comment = ", ".join(
                [
                    *(["null"] if column.nullable else []),
                    *([f"default {one.defaults[column.name]}"] if column.name in one.defaults else []),
                    *(["indexed"] if any(r.column == column.name for r in definition.indexes) else []),
                ]
            ).replace('"', "'")
            words = [kind, name, marks, f'"{comment}"' if comment else ""]
            lines.append(f"        {' '.join(word for word in words if word)}")
        lines += [f'        notify {column} "notify-only"' for column in definition.notify_only]
        lines.append("    }")
    return "\n".join(lines) + "\n"


def _write_schemas(folder: Path, found: Sequence[_Described], chain: Chain | None) -> None:
    from percolator_core.observers.schema import write_schemas

    typed = [one for one in found if one.definition.is_typed]
    if not typed and chain is None:
        raise Failure("there are no typed tables: raw tables hold bytes and have no JSON Schema")
    try:
        written = [] if chain is None else [str(path) for path in write_schemas(folder, chain)]
        folder.mkdir(parents=True, exist_ok=True)
        for one in typed:
            path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', one.definition.name)}.schema.json"
            if str(path) in written:
                raise Failure(f"the schema of table {one.definition.name!r} would replace {path}: rename it")
            path.write_text(json.dumps(json_schema_of(one.definition, one.model), indent=2) + "\n", "utf-8")
            written.append(str(path))
    except OSError as error:
        raise Failure(f"{folder} cannot be written ({error.strerror}): name another folder") from error
    outputs.current().result({"written": written}, "\n".join(f"{path} written" for path in written))


def json_schema_of(definition: TableDefinition, model: type[Table] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a typed table's rows, from the model or, without one, from the definition."""
    from pydantic import PydanticUserError

    if model is not None:
        try:
            return {"$schema": _DIALECT, **model.model_json_schema()}
        except PydanticUserError as error:
            why = str(error).partition("\n")[0]
            raise Failure(f"no JSON Schema can be made of {model.__name__}: {why}") from None
    properties = {
        one.name: {"anyOf": [_json_type(one.type), {"type": "null"}]}
        if one.nullable
        else _json_type(one.type)
        for one in definition.shown_columns
    }
    optional = {one.name for one in definition.columns if one.nullable or one.missing is not None}
    required = [
        one.name
        for one in definition.shown_columns
        if one.name not in optional and one.name not in definition.defaults
    ]
    return {
        "$schema": _DIALECT,
        "title": definition.name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _json_type(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a column's type, as pydantic does."""
    formats = {"bytes": "binary", "datetime": "date-time", "date": "date", "uuid": "uuid"}
    plain = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
    if name in formats:
        return {"type": "string", "format": formats[name]}
    if name in plain:
        return {"type": plain[name]}
    # A json column may hold any JSON value.
    return {} if name == "json" else {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}
