"""Fold the columns of a chain's graph into their tables, so that a large chain can be read at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import networkx as nx

from percolator_core.observers.drawing.layout import layers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from percolator_core.observers.graph import Graph

_IMPORTANCE = ("reads", "writes", "observe")
"""The kinds of edges. If several edges become one, it has the last of their kinds."""


def folded(graph: Graph, opened: Collection[str] = ()) -> Graph:
    """Return the graph with one node in place of the columns of each table, except of the tables ``opened``.

    Only columns of one layer become one node, with their names in ``columns``. So the order of the observers
    stays visible, and no new cycle arises. A column that is alone in its layer keeps its node.
    """
    layers = layers_of(graph)
    groups: dict[tuple[str, int], list[str]] = {}
    for node, attributes in graph.nodes(data=True):
        if attributes["kind"] == "column" and attributes["table"] not in opened:
            groups.setdefault((attributes["table"], layers[node]), []).append(node)
    name_of = {
        node: f"{table}\0{layer}"
        for (table, layer), nodes in groups.items()
        if len(nodes) > 1
        for node in nodes
    }
    small: Graph = nx.DiGraph(**graph.graph)
    for node, attributes in graph.nodes(data=True):
        name = name_of.get(node, node)
        if name != node and name in small:
            _add(small.nodes[name], attributes)
        elif name != node:
            small.add_node(name, **{**attributes, "columns": (attributes["column"],), "column": ""})
        else:
            small.add_node(node, **attributes)
    for source, target, edge in graph.edges(data=True):
        ends = name_of.get(source, source), name_of.get(target, target)
        known = small.edges[ends] if small.has_edge(*ends) else None
        if known is None or _rank(edge) > _rank(known):
            small.add_edge(*ends, **edge)
    return small


def without_readers(graph: Graph) -> Graph:
    """Return the graph without the edges of columns that are only read, and without such columns."""
    kept = graph.copy()
    kept.remove_edges_from([(s, t) for s, t, edge in graph.edges(data=True) if edge["kind"] == "reads"])
    kept.remove_nodes_from([node for node in graph if graph.degree(node) and not kept.degree(node)])
    return kept


def _add(node: dict[str, Any], column: Mapping[str, Any]) -> None:
    node["columns"] += (column["column"],)
    node["notify_only"] = node["notify_only"] and column["notify_only"]


def _rank(edge: Mapping[str, Any]) -> tuple[int, bool, bool]:
    return _IMPORTANCE.index(edge["kind"]), bool(edge.get("feedback")), edge.get("mode") == "strong"
