"""The drawings name every node, escape what is written in YAML, and keep boxes apart."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import networkx as nx
import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.observers.drawing.layout import Box, BoxSize, lay_out
from percolator_core.observers.drawing.png import png
from percolator_core.observers.drawing.render import FORMS, dot, mermaid, render
from percolator_core.observers.drawing.svg import BoxLink, parts, svg
from percolator_core.observers.graph import build_graph

if TYPE_CHECKING:
    from percolator_core.observers.graph import Graph
    from tests.observers.conftest import Project

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def graph(project: Project) -> Graph:
    project.observer("parse", 'observe: documents.contents\nwrites: ["documents.a\\"<&$b$", links.out]')
    project.observer(
        "invert", "observe: links.out\nreads: documents.url\nwrites: [clusters.dirty]\nexecutor: threads"
    )
    project.observer("elect", "observe: clusters.dirty\nmode: weak\nwrites: [links.out]\nfeedback: true")
    return project.load().graph


def test_mermaid(graph: Graph) -> None:
    text = mermaid(graph)
    assert text.startswith("flowchart LR\n")
    assert '["parse"]:::strong' in text
    assert '["elect"]:::weak' in text
    assert '(["clusters.dirty"]):::notify' in text
    assert "documents.a&quot;&lt;&amp;$b$" in text
    assert text.count("==>|feedback|") == 1
    assert text.count("-.->") == 1
    assert sum(" -" in line or " =" in line for line in text.splitlines()) == graph.number_of_edges()


def test_dot(graph: Graph) -> None:
    text = dot(graph)
    assert text.startswith('digraph "web" {')
    assert '"documents.a\\"<&$b$" [' in text
    assert text.count(" -> ") == graph.number_of_edges()
    assert text.rstrip().endswith("}")


def test_svg_is_a_document_that_follows_the_readers_setting(graph: Graph) -> None:
    root = ET.fromstring(svg(graph))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    for observer in ("parse", "invert", "elect"):
        assert observer in texts
    assert {"documents.", 'a"<&$b$'} <= set(texts)
    assert {"wakes", "wakes, weakly", "writes", "is read by", "closes a loop"} <= set(texts)
    assert "@media(prefers-color-scheme:dark)" in svg(graph)
    classes = [path.get("class", "") for path in root.iter(f"{SVG}path")]
    # One path for each edge, one for each entry of the legend.
    assert sum(name.startswith("line ") for name in classes) == graph.number_of_edges() + 5


def test_png(graph: Graph) -> None:
    assert png(graph).startswith(b"\x89PNG")


def test_png_without_matplotlib_is_one_sentence(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError) as raised:
        render(graph, "png")
    assert str(raised.value) == "a png needs matplotlib: pip install 'percolator-core[plot]', or choose svg"


def test_render_takes_a_form_by_name(graph: Graph) -> None:
    assert set(FORMS) == {"mermaid", "dot", "svg", "png"}
    assert render(graph, "svg") == svg(graph)
    with pytest.raises(
        ConfigurationError, match="'pdf' is not a form of the graph; choose mermaid, dot, svg, png"
    ):
        render(graph, "pdf")


def test_boxes_of_a_layer_stand_apart_and_inside_the_drawing(graph: Graph) -> None:
    drawing = lay_out(graph)
    layers: dict[int, list[tuple[float, float]]] = {}
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.x + box.width <= drawing.width
        assert box.y + box.height <= drawing.height
        layers.setdefault(box.layer, []).append((box.y, box.y + box.height))
        assert (box.layer % 2 == 1) == (box.attributes["kind"] == "observer")
    for spans in layers.values():
        assert all(above[1] < below[0] for above, below in pairwise(sorted(spans)))


def test_a_page_makes_the_boxes_of_observers_larger(graph: Graph) -> None:
    drawing = lay_out(graph, BoxSize(220.0, 90.0))
    for box in drawing.boxes:
        observer = box.attributes["kind"] == "observer"
        assert (box.height, box.width >= 220) == ((90, True) if observer else (28, box.width >= 220))
    spans = sorted((box.layer, box.y, box.y + box.height) for box in drawing.boxes)
    assert all(above[0] != below[0] or above[2] < below[1] for above, below in pairwise(spans))


def test_a_page_makes_each_box_a_link_and_gets_no_style(graph: Graph) -> None:
    def link_of(box: Box) -> BoxLink:
        return BoxLink(
            f'/x?a="{box.node}"&b', f'about "{box.node}" <&', f"id-{box.node}", "own", "<desc>in</desc>"
        )

    made = parts(lay_out(graph), link_of)
    root = ET.fromstring(f"<svg>{made.body}</svg>")
    links = list(root.iter("a"))
    assert {link.get("href") for link in links} == {f'/x?a="{node}"&b' for node in graph}
    for link in links:
        node = (link.get("id") or "").removeprefix("id-")
        assert link.get("aria-label") == link.findtext("title") == f'about "{node}" <&'
        assert link.get("class") == f"node {graph.nodes[node]['kind']} own"
        assert bool(list(link.iter("desc"))) == (graph.nodes[node]["kind"] == "observer")
    assert "style" not in {element.tag for element in root.iter()}
    assert not any("style" in element.attrib for element in root.iter())
    left, top, width, height = made.view
    for box in root.iter("rect"):
        assert left <= float(box.get("x", 0)) <= width
        assert top <= float(box.get("y", 0)) <= top + height


def test_lines_run_from_box_to_box(graph: Graph) -> None:
    drawing = lay_out(graph)
    boxes = {box.node: box for box in drawing.boxes}
    for line in drawing.lines:
        source, target = boxes[line.source], boxes[line.target]
        assert line.path[0][1][0] == (source.x + source.width, source.middle)
        assert line.path[-1][1][-1][0] == target.x


def test_a_drawing_is_the_same_each_time(project: Project, graph: Graph) -> None:
    assert svg(graph) == svg(project.load().graph)


def test_an_empty_graph_can_be_drawn() -> None:
    empty = build_graph("none", [], {})
    assert ET.fromstring(svg(empty)).tag == f"{SVG}svg"


def test_a_large_chain_is_drawn_in_seconds() -> None:
    graph: Graph = nx.DiGraph(name="large")
    for number in range(300):
        observer, column = f"o{number}", f"t.c{number}"
        graph.add_node(
            observer, kind="observer", mode="strong", executor="hub", function="m:f", description=""
        )
        graph.add_node(column, kind="column", table="t", column=f"c{number}", notify_only=False)
        graph.add_edge(column, observer, kind="observe", mode="strong")
        if number:
            graph.add_edge(f"o{(number - 1) // 3}", column, kind="writes", feedback=False)
        if number > 40:
            graph.add_edge(f"t.c{number % 7}", observer, kind="reads")
    began = time.monotonic()
    assert len(svg(graph)) > 10_000
    assert time.monotonic() - began < 20
