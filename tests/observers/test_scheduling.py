"""The ``airflow:`` block of chain.yaml: what it says, and the one line that each mistake in it gives."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core.observers import scheduling
from percolator_core.observers.chain import digest_of
from percolator_core.observers.rules import parse_schedule
from percolator_core.observers.schema import schemas

if TYPE_CHECKING:
    from tests.observers.conftest import Project

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "airflow.md").read_text(encoding="utf-8")
HEAD = "version: 1\nchain: web\ntables: {documents: {}}\n"
WHOLE = """\
airflow:
  connection: store.eu-1
  namespace: web 2
  tags: nightly
  timezone: Europe/Berlin
  default_args: {owner: data, retries: 5, retry_delay: 1m}
  load:
    schedule: "0 3 * * mon-fri"
    aside: bad
    max_bad: 10
    engine: local
    master: local[2]
    width: 8
    sources:
      - {table: documents, paths: pages/, format: html, base_url: "http://a/"}
      - table: documents
        paths: [a.csv, b.csv]
        key: id
        columns: [text, title]
        delimiter: ";"
        encoding: latin-1
        null_text: "-"
        delete_missing: "b/"
  observe: {engine: local, schedule: 10m, watch: false, budget: 1h, width: 9, threads: 2, tasks: 3}
  monitor:
    schedule: none
    history: 7d
    on_breach: warn
    drain: false
    thresholds:
      backlog: 5
      oldest: null
      failure_rate: 5%
      memory: 1.5GB
      workers: 2
      observers: {parse: {oldest: 3m}}
  maintain:
    schedule: "@daily"
    keep: 2d
    older_than: 5s
    parts: 2
    enabled: false
    default_args: {pool: slow, execution_timeout: 1h}
"""


def block(project: Project, text: str) -> scheduling.Scheduling:
    project.write("chain.yaml", HEAD + text)
    project.observer("parse", "observe: documents.contents")
    return project.load(import_functions=False).scheduling


def test_a_chain_without_the_block_has_the_defaults(project: Project) -> None:
    found = block(project, "")
    assert found == scheduling.Scheduling()
    assert (found.connection, found.observe.engine, found.observe.watch) == (
        "percolator_default",
        "spark",
        True,
    )
    assert (found.monitor.schedule, found.maintain.schedule, found.load.schedule) == (
        "* * * * *",
        "@hourly",
        None,
    )
    assert found.monitor.thresholds.failure_rate == 0.5


def test_all_of_it(project: Project) -> None:
    found = block(project, WHOLE)
    assert (found.tags, found.timezone) == (("nightly",), "Europe/Berlin")
    assert found.default_args == {"owner": "data", "retries": 5, "retry_delay": timedelta(minutes=1)}
    assert found.maintain.default_args == {"pool": "slow", "execution_timeout": timedelta(hours=1)}
    html, csv = found.load.sources
    assert (html.paths, html.columns) == (("pages/",), None)
    assert (csv.paths, csv.columns) == (("a.csv", "b.csv"), {"text": "text", "title": "title"})
    assert (found.observe.schedule, found.observe.budget) == (timedelta(minutes=10), 3600)
    thresholds = found.monitor.thresholds
    assert (thresholds.oldest, thresholds.failure_rate, thresholds.memory) == (None, 0.05, 1_500_000_000)
    assert thresholds.observers["parse"].oldest == 180
    assert (found.monitor.schedule, found.monitor.history) == (None, 7 * 86_400)
    assert (found.maintain.keep, found.maintain.enabled) == (2 * 86_400, False)


def test_it_is_no_part_of_what_workers_agree_about(project: Project) -> None:
    block(project, WHOLE)
    chain = project.load()
    assert chain.digest == digest_of(chain.observers.values())


WRONG = {
    "connecton: a": "airflow.connecton: is not a known key; did you mean 'connection'?",
    "connection: a b": "airflow.connection: 'a b' is not an id; use letters, digits, and _ . -",
    "timezone: Berlin": (
        "airflow.timezone: 'Berlin' is no time zone; write for instance UTC or Europe/Berlin"
    ),
    "default_args: [retries]": (
        "airflow.default_args: expected a mapping, not a list; write 'key: value' lines under it"
    ),
    "default_args: {retry_delay: 60}": (
        "airflow.default_args: retry_delay: expected a length such as 10s, 2m, 1h or 7d, not a number (60); "
        "did you mean '60s'?"
    ),
    "observe:": "airflow.observe: expected a mapping, not nothing; write {} for the defaults",
    "observe: {engine: sparc}": "airflow.observe.engine: 'sparc' is not known; did you mean 'spark'?",
    "observe: {budgt: 1m}": "airflow.observe.budgt: is not a known key; did you mean 'budget'?",
    "observe: {budget: 10}": (
        "airflow.observe.budget: expected a length such as 10s, 2m, 1h or 7d, not a number (10); "
        "did you mean '10s'?"
    ),
    "observe: {threads: 0}": "airflow.observe.threads: 0 is out of range; write 1 or more",
    "observe: {watch: 'yes'}": "airflow.observe.watch: expected true or false, not the text 'yes'",
    "load: {schedule: '* * *'}": (
        "airflow.load.schedule: '* * *' is no schedule; write five fields of cron such as '0 3 * * *', "
        "@daily, a length such as 10m, or none"
    ),
    "load: {schedule: '@dayly'}": (
        "airflow.load.schedule: '@dayly' is not a known schedule; did you mean '@daily'?"
    ),
    "load: {schedule: '61 * * * *'}": (
        "airflow.load.schedule: '61 * * * *' is no schedule: '61' is not a valid minute; write *, */2, or "
        "numbers from 0 to 59"
    ),
    "load: {schedule: 3}": (
        "airflow.load.schedule: expected a schedule such as '0 3 * * *', @daily or 10m, not a number (3)"
    ),
    "load: {schedule: 10ms}": "airflow.load.schedule: '10ms' is too short; write 1s or more",
    "load: {sources: [{table: documents}]}": (
        "airflow.load.sources[0].paths: is missing; add 'paths: [pages/]'"
    ),
    "load: {sources: [{tabel: documents, paths: a}]}": (
        "airflow.load.sources[0].tabel: is not a known key; did you mean 'table'?"
    ),
    "load: {sources: [{table: documents, paths: []}]}": (
        "airflow.load.sources[0].paths: names nothing; write a file, a folder or a pattern such as "
        "pages/*.html"
    ),
    "load: {sources: [{table: document, paths: a}]}": (
        "airflow.load.sources[0].table: table 'document' is not declared; did you mean 'documents'?"
    ),
    "load: {sources: [{table: shops, paths: a}]}": (
        "airflow.load.sources[0].table: table 'shops' is not declared; the chain has documents"
    ),
    "load: {sources: [{table: documents, paths: a, format: cvs}]}": (
        "airflow.load.sources[0].format: 'cvs' is not known; did you mean 'csv'?"
    ),
    "load: {sources: [{table: documents, paths: a, columns: 7}]}": (
        "airflow.load.sources[0].columns: expected lines of the form 'field: column', or a list of "
        "fields, not a number (7)"
    ),
    "monitor: {on_breach: ignore}": "airflow.monitor.on_breach: 'ignore' is not known; write fail or warn",
    "monitor: {thresholds: {backlogg: 1}}": (
        "airflow.monitor.thresholds.backlogg: is not a known key; did you mean 'backlog'?"
    ),
    "monitor: {thresholds: {memory: 5}}": (
        "airflow.monitor.thresholds.memory: expected a size such as 512MB or 4GiB, or a share of the store's "
        "limit such as 80%, not a number (5)"
    ),
    "monitor: {thresholds: {failure_rate: 500%}}": (
        "airflow.monitor.thresholds.failure_rate: '500%' is out of range; write a share from 0% to 100%"
    ),
    "monitor: {thresholds: {observers: {prase: {}}}}": (
        "airflow.monitor.thresholds.observers.prase: the chain has no observer 'prase'; did you mean 'parse'?"
    ),
    "monitor: {thresholds: {observers: {parse: {lock_age: 1s}}}}": (
        "airflow.monitor.thresholds.observers.parse.lock_age: is not a known key; the known keys are "
        "backlog, oldest, quarantine, failure_rate"
    ),
    "monitor: {history: forever}": (
        "airflow.monitor.history: 'forever' is not a length; write a number and a unit: 10s, 2m, 1h or 7d"
    ),
    "maintain: {parts: 0}": "airflow.maintain.parts: 0 is out of range; write 1 or more",
}


@pytest.mark.parametrize(("text", "expected"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_one_line(project: Project, text: str, expected: str) -> None:
    project.write("chain.yaml", f"{HEAD}airflow:\n  {text}\n")
    project.observer("parse", "observe: documents.contents")
    assert project.complaint() == f"chain.yaml:5: {expected}"


@pytest.mark.parametrize(
    "text", ["*/5 0-6,22 1 jan-mar SUN", "0 0 L * *", "0 9 * * 5#2", "30 4 1,15 * 5", "0 0 * * 7"]
)
def test_what_is_cron(text: str) -> None:
    assert parse_schedule(text) == text


@pytest.mark.parametrize(
    "text", ["*/0 * * * *", "* 24 * * *", "* * 0 * *", "* * * foo *", "* * * * 8", "1- * * * *"]
)
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no schedule: '.*' is not a valid"):
        parse_schedule(text)


def test_the_example_of_the_documentation_is_right(project: Project) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    project.write("chain.yaml", example)
    project.observer("parse", "observe: documents.contents")
    found = project.load(import_functions=False).scheduling
    assert (found.maintain.keep, found.load.sources[0].format) == (3_600, "html")


def test_the_block_is_in_the_schema_with_its_keys_described() -> None:
    schema = json.loads(schemas()["chain.schema.json"])
    for entry in schema["$defs"].values():
        assert all("description" in field for field in entry["properties"].values()), entry
    thresholds = schema["$defs"]["ThresholdsDeclaration"]["properties"]
    assert (thresholds["oldest"]["default"], thresholds["failure_rate"]["default"]) == ("10m", "50%")


def test_the_formats_are_those_of_loads() -> None:
    from percolator_core.loading.source import FORMATS

    assert set(scheduling.FORMATS) == set(FORMATS)
