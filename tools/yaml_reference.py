# ruff: noqa: INP001
"""This hook of mkdocs makes the tables of docs/reference/yaml.md from the models that check the YAML.

A line ``<!-- keys: ObserverDeclaration -->`` on a page becomes the table of that model's keys.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic_core import PydanticUndefined

from percolator_core.observers import declaration, scheduling
from percolator_core.observers.rules import DURATION_PATTERN, LENGTH_PATTERN, Declaration

_MARK: Final = re.compile(r"^<!-- keys: (\w+)(?: but (\w+))? -->$", re.MULTILINE)
_PATTERNS: Final = {DURATION_PATTERN: "a duration", LENGTH_PATTERN: "a length"}
_TYPES: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Replace the ``<!-- keys`` lines of a page by tables. Called by mkdocs for every page.

    It also ranks the page in the site's search: guides come before reference pages.
    """
    if page is not None:
        page.meta.setdefault("search", {"boost": _boost(page.file.src_uri)})
    return _MARK.sub(lambda mark: table_of(model_named(mark[1]), mark[2]), markdown)


def _boost(path: str) -> float:
    return 4 if path.startswith(("tutorial", "how-to/")) else 0.5 if path.startswith("reference/api/") else 1


def model_named(name: str) -> type[Declaration]:
    """Return the model of that name. Raises KeyError."""
    found: type[Declaration] = {**vars(scheduling), **vars(declaration)}[name]
    return found


def table_of(model: type[Declaration], base: str | None = None) -> str:
    """Return the keys of a model as a table of Markdown, without the keys of the model ``base``."""
    inherited = model_named(base).model_fields if base else {}
    properties = model.model_json_schema()["properties"]
    lines = ["| key | takes | default | |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if name in inherited:
            continue
        text = re.sub(r"'([^']+)'", r"`\1`", field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_takes(properties[name])} | {_default(field)} | {text} |")
    return "\n".join(lines)


def _takes(schema: dict[str, Any]) -> str:
    """Describe the values that a key takes, in a few words."""
    if "$ref" in schema or "allOf" in schema:
        return "a mapping"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("pattern") in _PATTERNS:
        return _PATTERNS[schema["pattern"]]
    if "anyOf" in schema:
        parts = [_takes(part) for part in schema["anyOf"]]
        return " or ".join(part for part in dict.fromkeys(parts) if part != "null")
    types = schema.get("type", "object")
    named = types if isinstance(types, str) else next(one for one in types if one != "null")
    low, high = schema.get("minimum"), schema.get("maximum")
    if named == "integer" and low is not None:
        return f"{low:,} to {high:,}" if high is not None else f"{low:,} or more"
    return _TYPES[named]


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.json_schema_extra, dict) and "default" in field.json_schema_extra:
        return f"`{field.json_schema_extra['default']}`"
    value = field.default
    if value is PydanticUndefined or value is None or value == ():
        return "none" if value is None or value == () or field.default_factory is dict else "see below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "empty"
