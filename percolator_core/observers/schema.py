"""JSON Schemas of the two kinds of YAML files, for editors.

With the schema in the first line of a file, an editor completes keys and marks errors::

    # yaml-language-server: $schema=../../schemas/observer.schema.json

``python -m percolator_core.observers.schema schemas`` writes the schemas again. ``percolator schema PATH
--json-schema FOLDER`` writes them with the tables and columns of one chain.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.declaration import (
    COLUMN_PATTERN,
    OBSERVED_PATTERN,
    ChainDeclaration,
    ObserverDeclaration,
)
from percolator_core.observers.rules import Declaration

if TYPE_CHECKING:
    from percolator_core.observers.chain import Chain

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MODELS: Final[dict[str, tuple[str, type[Declaration]]]] = {
    "chain.schema.json": ("A chain of observers (chain.yaml)", ChainDeclaration),
    "observer.schema.json": ("An observer", ObserverDeclaration),
}


def schemas(chain: Chain | None = None) -> dict[str, str]:
    """Return the text of each schema, by file name.

    With a chain, an editor completes the chain's tables and columns in the declarations of observers. It
    marks a table that the chain does not have, and a column that a typed table does not have. Load the chain
    with its models.
    """
    found = {}
    for name, (title, model) in _MODELS.items():
        schema = {"$schema": _DIALECT, **_tidy(model.model_json_schema()), "title": title}
        if chain is not None and model is ObserverDeclaration:
            columns = _columns_of(chain)
            whole_tables = [f"{table.name}.{EVERY_COLUMN}" for table in chain.tables]
            tables = [table.name for table in chain.tables]
            for key, more in (("observe", tables), ("reads", whole_tables), ("writes", whole_tables)):
                schema["properties"][key] = _named(
                    schema["properties"][key], sorted({*columns, *more}), chain
                )
        found[name] = json.dumps(schema, indent=2) + "\n"
    return found


def write_schemas(folder: Path, chain: Chain | None = None) -> list[Path]:
    """Write the schemas into ``folder``, which is created if it is missing; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in schemas(chain).items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _columns_of(chain: Chain) -> set[str]:
    """Return each ``table.column`` that a table of the chain defines or one of its observers names."""
    defined = {
        f"{table.name}.{column}" for table in chain.tables for column in (*table.by_name, *table.notify_only)
    }
    named = {
        f"{table}.{column}"
        for observer in chain.observers.values()
        for table, column in (*observer.observe, *observer.reads, *observer.writes)
        if column != EVERY_COLUMN
    }
    return defined | named


def _named(node: Any, columns: list[str], chain: Chain) -> Any:
    """Replace each schema of a ``table.column`` by one that names the chain's columns.

    A raw table may have more columns than the chain names.
    """
    if isinstance(node, list):
        return [_named(item, columns, chain) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("pattern") not in {COLUMN_PATTERN, OBSERVED_PATTERN}:
        return {key: _named(value, columns, chain) for key, value in node.items()}
    raw = "|".join(re.escape(table.name) for table in chain.tables if not table.is_typed)
    others = [{"type": "string", "pattern": rf"^({raw})\..+$"}] if raw else []
    return {"anyOf": [{"enum": columns}, *others], "description": node["description"]}


def _tidy(node: Any) -> Any:
    """Remove the titles that pydantic makes from names: editors would show them instead of descriptions."""
    if isinstance(node, dict):
        return {key: _tidy(value) for key, value in node.items() if key != "title"}
    return [_tidy(item) for item in node] if isinstance(node, list) else node


if __name__ == "__main__":
    for path in write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else "schemas")):
        sys.stdout.write(f"{path}\n")
