"""An installation of the built wheel with base dependencies alone: enough for all but Spark and Airflow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stranger import Stranger, installed_in
from tests.test_readme import blocks, write_project

FILES = {
    "shop/chain.yaml": "version: 1\nchain: shop\ntables: {pages: {}}\nschemas: tables\n",
    "shop/look.yaml": "version: 1\nobserver: look\nobserve: pages.contents\nfunction: tables:look\n",
    "tables.py": (
        "from datetime import date\n\n"
        "from percolator_core import PrimaryKey, Table\n\n\n"
        'class Item(Table, name="items"):\n'
        "    number: PrimaryKey[int]\n"
        "    name: str\n"
        "    price: float | None = None\n"
        "    added: date | None = None\n\n\n"
        "def look(t, cell):\n"
        "    pass\n"
    ),
    "items.csv": "number,name,price,added\n1,pen,1.5,2026-01-31\n2,ink,,\n",
    "items.tsv": "number\tname\tprice\tadded\n1\tpen\t1.5\t2026-01-31\n2\tink\t\t\n",
    "items.jsonl": '{"number": 1, "name": "pen", "price": 1.5}\n{"number": 2, "name": "ink"}\n',
    "site/index.html": "<p>one",
    "site/more/two.html": "<p>two",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return installed_in(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    rows = [{"number": 1, "name": "pen", "price": 1.5}, {"number": 2, "name": "ink", "price": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    return tmp_path


def test_it_has_no_package_of_an_extra(installed: Stranger, tmp_path: Path) -> None:
    program = (
        "import importlib.util as u\n"
        "print([name for name in ('airflow', 'matplotlib', 'pandas', 'pyspark', 'pytest', 'selectolax')"
        " if u.find_spec(name)])"
    )
    assert installed.run(tmp_path, "python", "-c", program).stdout == "[]\n"


@pytest.mark.parametrize(("marker", "output"), [("typed", "shows"), ("run", "prints")])
def test_the_programs_of_the_readme_run_as_printed(
    installed: Stranger, marker: str, output: str, tmp_path: Path
) -> None:
    write_project(tmp_path)
    ((_, program),) = blocks(marker)
    ((_, printed),) = blocks(output)
    done = installed.run(tmp_path, "python", "-c", program)
    assert (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize("source", ["items.csv", "items.tsv", "items.jsonl", "items.parquet", "site"])
def test_it_loads_without_spark_and_java(installed: Stranger, project: Path, source: str) -> None:
    table = "pages" if source == "site" else "items"
    for outcome in ("new", "unchanged"):
        done = installed.run(
            project, *("percolator", "load", source, "--table", table, "--chain", "shop", "--json")
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["read"], report[outcome], report["bad"]) == (2, 2, 0)
    rows = installed.run(project, "percolator", "scan", table)
    assert re.search("pen|<p>one", rows.stdout), rows.stdout + rows.stderr


def test_it_keeps_tables_in_files_backs_up_and_publishes(installed: Stranger, project: Path) -> None:
    chain = project / "shop" / "chain.yaml"
    chain.write_text(
        chain.read_text().replace("{}}", '{}, items: {base: {location: "file:base", cold_after: 1h}}}')
    )
    for command in (
        "load items.csv --table items --chain shop",
        "flush --everything",
        "backup backup",
        "publish items open",
        "doctor",
    ):
        done = installed.run(project, "percolator", *command.split())
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    found = {path.relative_to(project).parts[0] for path in project.rglob("*.parquet")}
    assert found == {"shop", "backup", "items.parquet", "open"}


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("load items.csv --table items --chain shop --spark", "spark"),
        ("drain shop --spark", "spark"),
        ("graph shop --output chain.png", "plot"),
        ("up .", "airflow"),
        ("ui --chain shop", "ui"),
        ("bench --plot bench.png", "plot"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    installed: Stranger, project: Path, command: str, extra: str
) -> None:
    done = installed.run(project, "percolator", *command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"pip install 'percolator-core[{extra}]'" in done.stderr
    assert "No module named" not in done.stderr
