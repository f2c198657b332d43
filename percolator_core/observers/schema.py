"""JSON Schemas of the two kinds of YAML files, for editors.

With the schema in the first line of a file, an editor completes keys and marks errors::

    # yaml-language-server: $schema=../../schemas/observer.schema.json

``python -m percolator_core.observers.schema schemas`` writes the schemas again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from percolator_core.observers.declaration import ChainDeclaration, ObserverDeclaration
from percolator_core.observers.rules import Declaration

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MODELS: Final[dict[str, tuple[str, type[Declaration]]]] = {
    "chain.schema.json": ("A chain of observers (chain.yaml)", ChainDeclaration),
    "observer.schema.json": ("An observer", ObserverDeclaration),
}


def schemas() -> dict[str, str]:
    """Return the text of each schema, by file name."""
    found = {}
    for name, (title, model) in _MODELS.items():
        schema = {"$schema": _DIALECT, **_tidy(model.model_json_schema()), "title": title}
        found[name] = json.dumps(schema, indent=2) + "\n"
    return found


def write_schemas(folder: Path) -> list[Path]:
    """Write the schemas into ``folder``, which is created if it is missing; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in schemas().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _tidy(node: Any) -> Any:
    """Remove the titles that pydantic makes from names: editors would show them instead of descriptions."""
    if isinstance(node, dict):
        return {key: _tidy(value) for key, value in node.items() if key != "title"}
    return [_tidy(item) for item in node] if isinstance(node, list) else node


if __name__ == "__main__":
    for path in write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else "schemas")):
        sys.stdout.write(f"{path}\n")
