"""The files of deploy/: every metric, label, command and option that they name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

import percolator_core
from percolator_core import Worker
from percolator_core.cli.app import app
from percolator_core.monitoring.exposition import Exposition
from percolator_core.monitoring.probe import Probe
from percolator_core.runtime.histogram import Histogram
from tests.chains import chain_of, put, watch
from tests.monitoring.conftest import State
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from percolator_core import Database

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "percolator.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "percolator.rules.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").iterdir())
CHART = DEPLOY / "helm" / "percolator"
TEMPLATES = sorted((CHART / "templates").iterdir())

OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the label of a bucket."""

SELECTED = re.compile(r"\b((?:percolator|process)_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample of a worker that has run, with a table that has a base."""
    folder = tmp_path_factory.mktemp("deploy")
    chain = chain_of(watch("count", lambda t, cell: None, "docs.text"))
    found: dict[str, set[str]] = defaultdict(set)
    with opened(folder) as db:
        chain.create_tables(db)
        db.set_base("docs", f"file://{folder / 'base'}")
        put(db, "a", b"x")
        counts = Worker(db, chain).run_until_idle(PATIENCE)
        db.flush("docs", everything=True)
        took = Histogram()
        took.add(1.0)
        state = State(chain, counts, times={"count": took})
        probe = Probe(lambda: opened(folder), chain)
        try:
            body, _ = Exposition(state.subject(), probe).text("")
        finally:
            probe.close()
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


def opened(folder: Path) -> Database:
    return percolator_core.connect(f"embedded:{folder / 'store'}", "here")


def expressions() -> Iterator[tuple[str, str]]:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("of", "expression"), list(expressions()))
def test_an_expression_names_existing_metrics_and_labels(
    exposed: dict[str, set[str]], of: str, expression: str
) -> None:
    metrics = SELECTED.findall(expression)
    assert metrics
    for name, selectors in metrics:
        assert name in exposed, f"{of}: no such metric {name}"
        used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors)
        assert set(used) <= exposed[name] | OF_PROMETHEUS, f"{of}: {name}"
    every = set().union(*(exposed[name] for name, _ in metrics)) | OF_PROMETHEUS
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= every, of
    for label in re.findall(r"label_values\(.*,\s*(\w+)\)$", expression):
        assert label in every, of
    assert is_closed(expression), of


def is_closed(expression: str) -> bool:
    """Brackets and quotes match."""
    text = re.sub(r'"[^"]*"', "", expression)
    depth: list[str] = []
    for letter in text:
        if letter in "([{":
            depth.append(letter)
        elif letter in ")]}" and (not depth or depth.pop() + letter not in {"()", "[]", "{}"}):
            return False
    return not depth and '"' not in text


def test_the_check_of_expressions_finds_mistakes(exposed: dict[str, set[str]]) -> None:
    for wrong in (
        "max(percolator_no_such_metric)",
        'max(percolator_workers{observer="a"})',
        "max by (table) (percolator_workers)",
        "max(percolator_workers",
    ):
        with pytest.raises(AssertionError):
            test_an_expression_names_existing_metrics_and_labels(exposed, "wrong", wrong)


def test_the_dashboard() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert BOARD["uid"]
    assert BOARD["id"] is None  # Grafana gives the number at the import
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == source
            assert panel["description"]
            assert [target["datasource"] for target in panel["targets"]] == [source] * len(panel["targets"])
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]) + json.dumps(BOARD["templating"])))
    assert used - {"__all", "__rate_interval"} == variables.keys()
    taken = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(taken) == len(set(taken)), "two panels overlap"


def test_the_alerts() -> None:
    [group] = RULES["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    page = (DEPLOY.parent / "docs" / "how-to" / "monitor.md").read_text()
    assert sorted(re.findall(r"^\| `(Percolator\w+)`", page, re.MULTILINE)) == sorted(names)
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        shown = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
        grouped = re.findall(r"^\s*\w+ by \(([^)]*)\)", rule["expr"])
        if grouped:
            assert set(shown) <= set(re.split(r",\s*", grouped[0])), rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="NOT TESTED: there is no promtool")
def test_prometheus_accepts_the_rules() -> None:
    subprocess.run(
        ["promtool", "check", "rules", DEPLOY / "prometheus" / "percolator.rules.yaml"], check=True
    )


GROUP: Any = typer.main.get_command(app)
USAGE: Any = typer.BadParameter.__mro__[1]
"""The base of every error in a command line."""


def parse(words: list[str]) -> None:
    """Parse a command line without running it; an unknown command or option is an error."""
    program, name, *rest = words
    assert program == "percolator"
    command = GROUP.get_command(None, name)
    assert command is not None, f"there is no command {name}"
    command.make_context(name, [*rest])


def test_the_check_of_commands_finds_mistakes() -> None:
    for wrong in (
        ["percolator", "nothing"],
        ["percolator", "gc", "--no-such-option"],
        ["percolator", "worker"],
    ):
        with pytest.raises((AssertionError, USAGE)):
            parse(wrong)


@pytest.fixture
def with_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder ``chain`` in the current directory, which options check."""
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "chain.yaml").write_text("version: 1\nchain: words\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("with_chain")
def test_the_units_start_existing_commands() -> None:
    programs = 0
    for unit in UNITS:
        for command in re.findall(r"^ExecStart=-?(.*)$", unit.read_text(), re.MULTILINE):
            program, *rest = command.split()
            assert program == "/srv/%i/.venv/bin/percolator"
            parse(["percolator", *rest])
            programs += 1
    assert programs == 5


def test_each_timer_has_its_service() -> None:
    names = {unit.name for unit in UNITS}
    timers = [name for name in names if name.endswith(".timer")]
    assert timers
    assert {timer.replace(".timer", ".service") for timer in timers} <= names


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NOT TESTED: there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """With a program, a folder and a user that exist here."""
    for one in UNITS:
        text = one.read_text().replace("/srv/%i/.venv/bin/percolator", "/bin/true")
        text = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.MULTILINE)
        (tmp_path / one.name.replace("@.", "@test.")).write_text(text)
    file = tmp_path / unit.name.replace("@.", "@test.")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert unit.name.replace("@.", "@test.") not in told, told


# Helm. There is no Helm here: the test replaces the few forms that the templates may have.


def values(path: str = "", content: Any = None) -> dict[str, Any]:
    """The values of the chart by their path."""
    tree = yaml.safe_load((CHART / "values.yaml").read_text()) if content is None else content
    found: dict[str, Any] = {}
    for name, value in tree.items():
        at = f"{path}.{name}" if path else name
        found |= values(at, value) if isinstance(value, dict) else {at: value}
    return found


def rendered(template: Path) -> list[Any]:
    text = re.sub(r"^\{\{- (?:if \.Values\.[\w.]+|end) \}\}\n", "", template.read_text(), flags=re.MULTILINE)
    every = values()
    text = re.sub(r"\{\{ \.Values\.([\w.]+) \}\}", lambda found: str(every[found[1]]), text)
    text = text.replace("{{ .Release.Name }}", "here")
    assert "{{" not in text, f"{template.name} has a form that this test does not know"
    return list(yaml.safe_load_all(text))


def containers(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        for name, value in content.items():
            if name in {"containers", "initContainers"}:
                yield from value
            else:
                yield from containers(value)


@pytest.mark.usefixtures("with_chain")
def test_the_chart_runs_existing_commands() -> None:
    commands = []
    for template in TEMPLATES:
        for document in rendered(template):
            for container in containers(document):
                assert all(isinstance(word, str) for word in container["command"]), container["command"]
                parse(container["command"])
                commands.append(container["command"][1])
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert all(isinstance(one.get("value", ""), str) for one in container["env"])
    assert sorted(commands) == ["gc", "resolve", "ui", "worker"]


def test_the_chart_uses_each_value_and_no_other() -> None:
    used = set(re.findall(r"\.Values\.([\w.]+)", "".join(one.read_text() for one in TEMPLATES)))
    assert used == values().keys()


def test_the_parts_of_the_chart_fit_together() -> None:
    by_kind: dict[str, list[Any]] = defaultdict(list)
    for template in TEMPLATES:
        for document in rendered(template):
            by_kind[document["kind"]].append(document)
    assert {kind: len(some) for kind, some in by_kind.items()} == {
        "Deployment": 2,
        "Service": 2,
        "ServiceMonitor": 1,
        "CronJob": 1,
    }
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in by_kind["Deployment"]]
    for deployment in by_kind["Deployment"]:
        assert deployment["spec"]["selector"]["matchLabels"] in pods
    for service in by_kind["Service"]:
        assert service["spec"]["selector"] in pods
    [monitor] = by_kind["ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"] in [
        one["metadata"]["labels"] for one in by_kind["Service"]
    ]
    ports = {port["name"] for one in by_kind["Service"] for port in one["spec"]["ports"]}
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= ports
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == percolator_core.__version__


@pytest.mark.skipif(shutil.which("helm") is None, reason="NOT TESTED: there is no helm")
def test_helm_renders_the_chart() -> None:
    switches = ["--set", "ui.enabled=true", "--set", "serviceMonitor.enabled=true"]
    subprocess.run(["helm", "lint", CHART], check=True)
    done = subprocess.run(["helm", "template", CHART, *switches], capture_output=True, text=True, check=True)
    assert len(list(yaml.safe_load_all(done.stdout))) == 6
