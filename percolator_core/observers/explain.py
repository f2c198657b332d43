"""Turn validation errors into single lines: file, line, field, problem, and correction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from pydantic import ValidationError

from percolator_core.layout.records import MAX_TABLETS
from percolator_core.observers.rules import Declaration
from percolator_core.observers.yaml_file import (
    Location,
    Problems,
    YamlFile,
    describe,
    did_you_mean,
    listed,
    quoted,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

AnyDeclaration = TypeVar("AnyDeclaration", bound=Declaration)

_EXAMPLES: Final = {
    "version": "version: 1",
    "chain": "chain: webindex",
    "tables": "tables: {documents: {tablets: 16}}",
    "observer": "observer: parse",
    "observe": "observe: documents.contents",
    "function": "function: observers.webindex.parse:process",
    "table": "table: documents",
    "paths": "paths: [pages/]",
}
_PATTERNS: Final = {
    "chain": "is not a name; use a lower-case letter, then up to 62 of a-z, 0-9 and _",
    "observer": "is not a name; use a lower-case letter, then up to 62 of a-z, 0-9 and _",
    "function": "is not module:function; write for instance observers.webindex.parse:process",
    "tables": "is not a table's name; write one without dots",
    "schemas": "is not a module's name; write for instance schemas.webindex",
    "observers": "is not a module's name; write for instance webindex.observers",
    "views": "is not a module's name; write for instance webindex.views",
}
_TYPES: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
}
_MISSING: Final = "is missing"
_UNKNOWN: Final = "is not a known key"
_MEANT: Final = re.compile(rf"^{_UNKNOWN}; did you mean '(.*)'\?$")


def validate(model: type[AnyDeclaration], file: YamlFile, problems: Problems) -> AnyDeclaration | None:
    """Return the declaration in ``file``; or add each error to ``problems`` and return None."""
    try:
        return model.model_validate(file.data)
    except ValidationError as error:
        found = []
        for detail in error.errors(include_url=False):
            location = tuple(part for part in detail["loc"] if part != "[key]")
            found.append((file.find(location)[0] or 0, location, _explain(model, file, location, detail)))
        misspelt = {(*location[:-1], name) for _, location, what in found for name in _MEANT.findall(what)}
        for _, location, what in sorted(found, key=lambda one: one[0]):
            # A misspelt key is reported as unknown; do not report the intended key as missing, too.
            if location not in misspelt or not what.startswith(_MISSING):
                problems.add(file.problem(location, what))
        return None


def _explain(model: type[Declaration], file: YamlFile, location: Location, detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    field = str(location[-1]) if location else ""
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return _unknown_key(_model_at(model, location[:-1]), file, location)
    if kind == "missing":
        example = _EXAMPLES.get(field)
        return f"{_MISSING}; add '{example}'" if example else _MISSING
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", str(context["expected"]))
        mend = did_you_mean(value, known) or f"; write {listed(known)}"
        return f"{quoted(value) if isinstance(value, str) else describe(value)} is not known{mend}"
    if kind == "string_pattern_mismatch":
        reason = _PATTERNS.get(field) or _PATTERNS.get(str(location[0]), "has the wrong form")
        return f"{quoted(str(value))} {reason}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bounds = {"tablets": f"1 to {MAX_TABLETS}", "attempts": "1 to 100", "revision": "1 to 4294967295"}
        most = f"a number from {bounds[field]}" if field in bounds else f"{context['ge']} or more"
        return f"{value} is out of range; write {most}"
    if kind == "too_short":
        what = "is empty; declare at least one, such as" if field in file.data else f"{_MISSING}; add"
        return f"{what} '{_EXAMPLES[field]}'"
    return _wrong_type(_TYPES.get(kind), value) or f"{detail['msg']}; compare with the schema"


def _wrong_type(expected: str | None, value: object) -> str | None:
    if expected is None:
        return None
    mend = ""
    if expected == "text" and value is not None and not isinstance(value, (dict, list)):
        mend = "; put it in quotes"
    elif expected == "a mapping" and value is None:
        mend = "; write {} for the defaults"
    elif expected == "a whole number" and isinstance(value, str) and value.isdecimal():
        mend = "; remove the quotes"
    elif expected == "a mapping":
        mend = "; write 'key: value' lines under it"
    return f"expected {expected}, not {describe(value)}{mend}"


def _unknown_key(model: type[Declaration], file: YamlFile, location: Location) -> str:
    key = str(location[-1])
    known = list(model.model_fields)
    # Do not suggest a key that the file already has.
    guesses = known if len(location) > 1 else [name for name in known if name not in file.data]
    mend = did_you_mean(key, guesses) or f"; the known keys are {', '.join(known)}"
    return f"{_UNKNOWN}{mend}"


def _model_at(model: type[Declaration], location: Location) -> type[Declaration]:
    """Return the model of the mapping at ``location``."""
    for part in location:
        field = model.model_fields.get(str(part))
        # All items of a mapping or list have the same model.
        model = model if field is None else _model_in(field.annotation) or model
    return model


def _model_in(annotation: Any) -> type[Declaration] | None:
    """Return the model that is a field's type, or the type of its items."""
    if isinstance(annotation, type) and issubclass(annotation, Declaration):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one))), None)
