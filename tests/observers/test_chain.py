"""What a good chain looks like once loaded."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from percolator_core.database import connect
from percolator_core.errors import CyclicChain
from percolator_core.observers import Chain, Observer, Retry
from percolator_core.observers.chain import digest_of
from percolator_core.observers.declaration import split_column
from percolator_core.observers.graph import build_graph, generations, undeclared_cycles
from percolator_core.observers.rules import parse_duration
from percolator_core.schema.definitions import TableDefinition

if TYPE_CHECKING:
    from tests.observers.conftest import Project


def test_defaults_and_every_setting(project: Project) -> None:
    project.observer("short", "observe: documents.contents")
    project.observer(
        "long",
        "observe:\n  - clusters.dirty\nmode: weak\nreads: documents.url\nwrites: [links.*, documents.a.b]\n"
        "retry: {attempts: 3, backoff: 1.5s, max_backoff: 2m}\ntimeout: 1h\nsettle: 20ms\nfeedback: "
        "true\nexecutor: threads\n"
        "description: Does it.",
        function="steps:flexible",
    )
    chain = project.load()
    assert (chain.name, chain.path, list(chain.observers)) == (
        "web",
        Path("observers/web"),
        ["long", "short"],
    )
    assert chain.tables == (
        TableDefinition("clusters", 16, ("dirty",)),
        TableDefinition("documents", 4),
        TableDefinition("links"),
    )
    function = sys.modules["steps"].flexible
    file = Path("observers/web/long.yaml")
    assert chain.observers["long"] == Observer(
        name="long",
        file=file,
        function=function,
        function_name="steps:flexible",
        observe=(("clusters", "dirty"),),
        mode="weak",
        reads=(("documents", "url"),),
        writes=(("links", "*"), ("documents", "a.b")),
        retry=Retry(3, 1.5, 120.0),
        timeout=3600.0,
        settle=0.02,
        feedback=True,
        executor="threads",
        description="Does it.",
    )
    short = chain.observers["short"]
    assert (short.mode, short.retry, short.timeout, short.settle, short.executor) == (
        "strong",
        Retry(8, 0.05, 10.0),
        60.0,
        0.0,
        "hub",
    )
    project.observer("gentle", "observe: clusters.dirty\nmode: weak")
    assert project.load().observers["gentle"].settle == 1.0
    assert chain.observed == {("clusters", "dirty"): ("long",), ("documents", "contents"): ("short",)}


def test_the_current_directory_is_put_on_the_path_once(project: Project) -> None:
    project.observer("parse", "observe: documents.contents")
    project.load()
    project.load()
    assert sys.path[0] == str(project.top)
    assert sys.path.count(str(project.top)) == 1


def test_without_functions_no_code_runs(project: Project) -> None:
    (project.top / "steps.py").write_text("raise SystemExit")
    project.observer("parse", "observe: documents.contents")
    observer = project.load(import_functions=False).observers["parse"]
    with pytest.raises(RuntimeError, match="steps:process was not imported"):
        observer.function(None, None)


def test_hidden_files_and_folders_are_left_alone(project: Project) -> None:
    project.observer("parse", "observe: documents.contents")
    project.write(".parse.yaml", "rubbish")
    project.write("notes.txt", "rubbish")
    (project.folder / "more.yaml").mkdir()
    assert list(project.load().observers) == ["parse"]


def test_a_byte_order_mark_and_an_editor_header_are_fine(project: Project) -> None:
    header = "\ufeff# yaml-language-server: $schema=../../schemas/observer.schema.json\n"
    project.write("p.yaml", f"{header}version: 1\nobserver: p\nobserve: links.out\nfunction: steps:process\n")
    assert project.load().observers["p"].observe == (("links", "out"),)


def test_create_tables_makes_tables_and_then_activates(project: Project, tmp_path: Path) -> None:
    project.observer("parse", "observe: documents.contents")
    chain = project.load()
    with connect(f"embedded:{tmp_path / 'state'}") as db:
        chain.create_tables(db)
        chain.create_tables(db)
        assert [(table.name, table.tablets, table.notify_only) for table in db.tables()] == [
            ("clusters", 16, ("dirty",)),
            ("documents", 4, ()),
            ("links", 16, ()),
        ]
        assert db.active_observers() == {"parse"}


def test_the_graph_names_observers_columns_and_edges(project: Project) -> None:
    project.observer(
        "parse", "observe: documents.contents\nreads: documents.url\nwrites: [links.*, clusters.dirty]"
    )
    project.observer("invert", "observe: [links.out, links.moved]\nwrites: documents.*")
    project.observer("elect", "observe: clusters.dirty\nmode: weak\nwrites: [links.*]\nfeedback: true")
    with pytest.raises(CyclicChain):
        project.load()
    project.observer("invert", "observe: [links.out, links.moved]\nwrites: clusters.dirty")
    graph = project.load().graph
    assert isinstance(graph, nx.DiGraph)
    assert graph.graph["name"] == "web"
    assert graph.nodes["parse"]["kind"] == "observer"
    assert graph.nodes["clusters.dirty"] == {
        "kind": "column",
        "table": "clusters",
        "column": "dirty",
        "notify_only": True,
    }
    assert {(source, target): edge["kind"] for source, target, edge in graph.edges(data=True)} == {
        ("documents.contents", "parse"): "observe",
        ("documents.url", "parse"): "reads",
        ("parse", "links.out"): "writes",
        ("parse", "links.moved"): "writes",
        ("parse", "clusters.dirty"): "writes",
        ("links.out", "invert"): "observe",
        ("links.moved", "invert"): "observe",
        ("invert", "clusters.dirty"): "writes",
        ("clusters.dirty", "elect"): "observe",
        ("elect", "links.out"): "writes",
        ("elect", "links.moved"): "writes",
    }
    assert {edge for edge in graph.edges if graph.edges[edge].get("feedback")} == {
        ("elect", "links.out"),
        ("elect", "links.moved"),
    }
    assert [[o.name for o in generation] for generation in project.load().order()] == [
        ["parse"],
        ["invert"],
        ["elect"],
    ]


def test_all_columns_of_an_unobserved_table_are_one_node(project: Project) -> None:
    project.observer("parse", "observe: documents.contents\nwrites: [links.*]")
    assert list(project.load().graph.successors("parse")) == ["links.*"]


def test_all_columns_of_a_table_leave_out_notify_only_columns(project: Project) -> None:
    project.observer("elect", "observe: clusters.dirty\nmode: weak\nwrites: [clusters.*]")
    graph = project.load().graph
    assert list(graph.successors("elect")) == ["clusters.*"]
    project.observer("count", "observe: clusters.size")
    graph = project.load().graph
    assert list(graph.successors("elect")) == ["clusters.size"]


def test_a_cycle_is_refused_and_printed(project: Project) -> None:
    project.observer("a", "observe: documents.y\nwrites: [documents.x]")
    project.observer("b", "observe: documents.x\nwrites: [documents.y]")
    with pytest.raises(CyclicChain) as raised:
        project.load()
    assert raised.value.cycle == ["a", "documents.x", "b", "documents.y", "a"]
    assert str(raised.value) == (
        "observers/web/a.yaml:5: writes: the chain is cyclic: a → documents.x → b → documents.y → a; "
        "break it, or "
        "write feedback: true in the observer that closes the loop; it must write nothing "
        "when nothing changed"
    )


def test_an_observer_that_wakes_itself_is_a_cycle(project: Project) -> None:
    project.observer("a", "observe: documents.x\nwrites: [documents.*]")
    with pytest.raises(CyclicChain) as raised:
        project.load()
    assert raised.value.cycle == ["a", "documents.x", "a"]


def test_a_cycle_beside_other_mistakes_is_reported_with_them(project: Project) -> None:
    project.observer("a", "observe: documents.x\nwrites: [documents.x, nowhere.x]")
    lines = project.complaints()
    assert [line.split(": ")[1] for line in lines] == ["writes[1]", "writes"]
    assert "a → documents.x → a" in lines[1]


def test_two_knots_are_both_reported(project: Project) -> None:
    project.observer("a", "observe: documents.x\nwrites: [documents.x]")
    project.observer("b", "observe: documents.y\nwrites: [documents.y]")
    assert len(project.complaints()) == 2


@pytest.mark.parametrize("closing", ["a", "b"])
def test_feedback_allows_the_loop_and_decides_the_order(project: Project, closing: str) -> None:
    for name, observe, writes in (("a", "y", "x"), ("b", "x", "y")):
        feedback = "\nfeedback: true" if name == closing else ""
        project.observer(name, f"observe: documents.{observe}\nwrites: [documents.{writes}]{feedback}")
    order = [observer.name for generation in project.load().order() for observer in generation]
    assert order == (["b", "a"] if closing == "a" else ["a", "b"])


def test_feedback_elsewhere_does_not_help(project: Project) -> None:
    project.observer("a", "observe: documents.x\nwrites: [documents.x]")
    project.observer("b", "observe: documents.y\nwrites: [documents.y]\nfeedback: true")
    with pytest.raises(CyclicChain) as raised:
        project.load()
    assert raised.value.cycle == ["a", "documents.x", "a"]


def test_reading_back_is_no_cycle(project: Project) -> None:
    project.observer("a", "observe: documents.x\nreads: documents.z\nwrites: [documents.y]")
    project.observer("b", "observe: documents.y\nwrites: [documents.z]")
    assert len(project.load().order()) == 2


def _digest(project: Project, **observers: str) -> str:
    for path in project.folder.iterdir():
        if path.name != "chain.yaml":
            path.unlink()
    for name, rest in observers.items():
        project.observer(name, rest)
    return project.load().digest


def test_the_digest_is_of_who_watches_what(project: Project) -> None:
    base = _digest(project, a="observe: [documents.x, documents.y]", b="observe: links.out")
    assert len(base) == 64
    assert base == _digest(
        project,
        b="observe: [links.out]\ntimeout: 5s\nretry: {attempts: 2}\nexecutor: threads\ndescription: new",
        a="observe: [documents.y, documents.x]\nreads: links.out\nwrites: [clusters.name]\nfeedback: true",
    )
    different = {
        _digest(project, a="observe: [documents.x, documents.y]"),
        _digest(project, a="observe: [documents.x]", b="observe: links.out"),
        _digest(project, a="observe: [documents.x, documents.y]", c="observe: links.out"),
        _digest(project, a="observe: clusters.dirty\nmode: weak", b="observe: links.out"),
    }
    assert len(different | {base}) == 5


def test_the_digest_stays_the_same_between_releases() -> None:
    observers = [_observer("b", ["t.y"], []), _observer("a", ["t.z", "t.x"], [])]
    assert digest_of(observers) == digest_of(observers[::-1]) == DIGEST


DIGEST = "5e4d9a5e072322df15095ac8dea33a582b801411e23bedfc6869568b9a502c47"


def test_a_chain_survives_pickling(project: Project) -> None:
    project.observer("parse", "observe: documents.contents")
    chain = project.load()
    again: Chain = pickle.loads(pickle.dumps(chain))
    assert again.observers == chain.observers
    assert again.digest == chain.digest


def _observer(name: str, observe: list[str], writes: list[str], feedback: bool = False) -> Observer:
    def function(t: Any, cell: Any) -> None:
        return None

    return Observer(
        name=name,
        file=Path(f"{name}.yaml"),
        function=function,
        function_name="steps:process",
        observe=tuple(split_column(column) for column in observe),
        writes=tuple(split_column(column) for column in writes),
        feedback=feedback,
    )


columns = st.lists(st.sampled_from([f"t.c{n}" for n in range(6)]), max_size=3, unique=True)
chains = st.lists(st.tuples(columns.filter(bool), columns, st.booleans()), min_size=1, max_size=6).map(
    lambda parts: {f"o{n}": _observer(f"o{n}", *part) for n, part in enumerate(parts)}
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(chains)
def test_exactly_the_cycles_without_feedback_are_refused(observers: dict[str, Observer]) -> None:
    graph = build_graph("any", [], observers)
    closed = [
        any(node in observers and observers[node].feedback for node in cycle)
        for cycle in nx.simple_cycles(graph)
    ]
    found = undeclared_cycles(graph)
    assert bool(found) == (not all(closed))
    for cycle in found:
        assert cycle[0] == cycle[-1]
        assert nx.is_simple_path(graph, cycle[:-1])
        assert graph.has_edge(cycle[-2], cycle[-1])
        assert not any(node in observers and observers[node].feedback for node in cycle)
    if not found:
        order = [name for generation in generations(graph) for name in generation]
        assert sorted(order) == sorted(observers)


def test_a_large_knot_is_reported_quickly() -> None:
    # All write what all observe: more simple cycles than atoms in the universe.
    every = [f"t.c{n}" for n in range(120)]
    observers = {f"o{n}": _observer(f"o{n}", [every[n]], every) for n in range(120)}
    assert undeclared_cycles(build_graph("knot", [], observers)) == [["o0", "t.c0", "o0"]]


@given(st.integers(1, 10**4), st.sampled_from(["ms", "s"]))
def test_durations_are_seconds(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == pytest.approx(number / (1000 if unit == "ms" else 1))


@given(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.from_regex(r"[a-z][a-z.]{0,5}", fullmatch=True))
def test_a_column_may_hold_dots(table: str, column: str) -> None:
    assert split_column(f"{table}.{column}") == (table, column)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "observer", "observe", "mode", "function", "writes", "retry", "timeout", "other"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_whatever_is_in_a_file_the_answer_names_it(project: Project, data: dict[str, object]) -> None:
    import yaml

    project.write("parse.yaml", yaml.safe_dump(data))
    for line in project.complaints():
        assert line.startswith("observers/web/parse.yaml")
        assert line.isprintable()
        assert "; " in line or "expected" in line, line
