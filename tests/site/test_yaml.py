"""The tables of docs/reference/yaml.md have every key of the models, with its description."""

from __future__ import annotations

import inspect
import re

import pytest

from percolator_core.observers import declaration, scheduling
from percolator_core.observers.rules import Declaration
from tests.site.pages import DOCS
from tools.yaml_reference import on_page_markdown, table_of

PAGE = on_page_markdown((DOCS / "reference" / "yaml.md").read_text(encoding="utf-8"))
MODELS = {
    name: model
    for module in (declaration, scheduling)
    for name, model in vars(module).items()
    if inspect.isclass(model) and issubclass(model, Declaration) and model is not Declaration
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_each_key_is_described(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| (.*) \|$", PAGE, re.MULTILINE)
    described = {key: text.replace("`", "'") for key, text in rows}
    texts = {(key, text.replace("`", "'")) for key, text in rows}
    for key, field in MODELS[name].model_fields.items():
        assert key in described
        assert (key, field.description) in texts


def test_no_mark_is_left() -> None:
    assert "<!-- keys" not in PAGE


def test_defaults_and_values_are_those_of_the_models() -> None:
    lines = table_of(declaration.ObserverDeclaration).splitlines()
    cells = {line.split("`")[1]: [cell.strip() for cell in line.split(" | ")] for line in lines[2:]}
    assert cells["observe"][1:3] == ["text or a list", "required"]
    assert cells["mode"][1:3] == ["`strong`, `weak`", "`strong`"]
    assert cells["timeout"][1:3] == ["a duration", "`60s`"]
    assert cells["retry"][1:3] == ["a mapping", "see below"]
    assert cells["feedback"][1:3] == ["true or false", "`false`"]
    assert (
        table_of(declaration.TableDeclaration).splitlines()[2].startswith("| `tablets` | 1 to 4,096 | `16` |")
    )


def test_inherited_keys_can_be_left_out() -> None:
    own = table_of(scheduling.MaintainDeclaration, "DagDeclaration")
    assert "`enabled`" not in own
    assert "`parts`" in own
