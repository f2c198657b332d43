"""The DAG files and the settings of docs/how-to/airflow.md are correct."""

from __future__ import annotations

from pathlib import Path

import yaml

from percolator_core.observers.declaration import ChainDeclaration
from tests.airflow.running import Dags
from tests.site.pages import blocks

ROOT = Path(__file__).parents[2]


def examples(language: str) -> list[str]:
    return [block.text for block in blocks("how-to/airflow.md") if block.language == language]


def test_the_dag_files(dags: Dags) -> None:
    found = {}
    for number, text in enumerate(examples("python")):
        for file in dags.folder.glob("*.py"):
            file.unlink()
        dags.write(f"file{number}.py", text.replace('"../observers', f'"{ROOT}/observers'))
        found[number] = set(dags.load())
    assert found == {
        0: {"webindex_load", "webindex_observe", "webindex_monitor", "webindex_maintain"},
        1: {"webindex_load", "webindex_observe", "webindex_monitor"},
        2: {"digest"},
        3: {"publish", "backup"},
    }


def test_the_settings() -> None:
    (text,) = examples("yaml")
    declared = ChainDeclaration.model_validate(yaml.safe_load(text))
    assert declared.airflow is not None
    assert declared.airflow.observe.budget == 1800
    # The example has every threshold except those of single observers.
    fields = set(type(declared.airflow.monitor.thresholds).model_fields) - {"observers"}
    assert fields == set(yaml.safe_load(text)["airflow"]["monitor"]["thresholds"])
