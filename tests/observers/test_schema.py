"""The schemas that editors read are those of the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from percolator_core.observers.declaration import ChainDeclaration, ObserverDeclaration
from percolator_core.observers.schema import schemas, write_schemas

FOLDER = Path(__file__).parents[2] / "schemas"


@pytest.mark.parametrize("name", schemas())
def test_the_exported_schema_is_current(name: str) -> None:
    mend = "run python -m percolator_core.observers.schema schemas"
    assert (FOLDER / name).read_text(encoding="utf-8") == schemas()[name], mend


def test_each_key_is_described_and_unknown_keys_are_refused() -> None:
    for name, model in (("chain", ChainDeclaration), ("observer", ObserverDeclaration)):
        schema = json.loads(schemas()[f"{name}.schema.json"])
        assert set(schema["properties"]) == set(model.model_fields)
        assert schema["additionalProperties"] is False
        assert all("description" in entry for entry in schema["properties"].values())
        assert all(entry["additionalProperties"] is False for entry in schema["$defs"].values())


def test_durations_and_their_defaults_are_text() -> None:
    schema = json.loads(schemas()["observer.schema.json"])
    assert schema["properties"]["timeout"]["default"] == "60s"
    retry = schema["$defs"]["RetryDeclaration"]["properties"]
    assert (retry["backoff"]["default"], retry["max_backoff"]["default"]) == ("50ms", "10s")
    assert retry["backoff"]["type"] == "string"


def test_they_are_written_where_asked(tmp_path: Path) -> None:
    written = write_schemas(tmp_path / "new")
    assert [path.name for path in written] == ["chain.schema.json", "observer.schema.json"]
    assert json.loads(written[0].read_text())["$schema"] == "https://json-schema.org/draft/2020-12/schema"
