"""The dependency graph of a chain: the columns that wake each observer, and the columns that it writes.

Nodes are strings: ``"parse"`` for an observer, ``"documents.contents"`` for a column. Only columns have a
dot, so the two cannot be confused. Each node has a ``kind``, ``"observer"`` or ``"column"``. Each edge has a
``kind``, too:

- ``"observe"``: from a column to the observer that it wakes; ``mode`` is the mode of the observer.
- ``"reads"``: from a column to an observer that reads it but is not woken by it; never part of a cycle.
- ``"writes"``: from an observer to a column. ``feedback=True`` marks an edge that closes a declared loop.

``table.*`` is a node, too. An observer that watches the whole row is woken by it, so a write of any column
leads to it. A write of ``table.*`` leads to every column of the table that an observer watches or reads, and
a read of ``table.*`` comes from every column that an observer writes; to or from the node itself only if
there is none. Both leave out notify-only columns: a write of a row does not notify them.

In a cycle of observe and writes edges, the observers would wake each other without end. So a cycle is refused
unless one of its observers declares ``feedback: true``: it closes the loop on purpose, and ends it by writing
nothing if nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import networkx as nx

from percolator_core.layout.keys import EVERY_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from percolator_core.observers.observer import Column, Observer
    from percolator_core.schema.definitions import TableDefinition

    Graph: TypeAlias = "nx.DiGraph[str]"


def observed_columns(observers: Iterable[Observer]) -> dict[Column, tuple[str, ...]]:
    """Return the names of the observers of each observed column; both are sorted."""
    watching: dict[Column, list[str]] = {}
    for observer in observers:
        for column in observer.observe:
            watching.setdefault(column, []).append(observer.name)
    return {column: tuple(sorted(watching[column])) for column in sorted(watching)}


def build_graph(name: str, tables: Iterable[TableDefinition], observers: Mapping[str, Observer]) -> Graph:
    """Return the graph of the chain ``name``, with nodes and edges in a fixed order."""
    graph: Graph = nx.DiGraph(name=name)
    notify_only = {(table.name, column) for table in tables for column in table.notify_only}
    # Weak observers show which columns are notify-only, even if typed tables are not known.
    notify_only.update(one for it in observers.values() if it.mode == "weak" for one in it.observe)
    used = _by_table(observers.values(), notify_only, "observe", "reads")
    written = _by_table(observers.values(), notify_only, "writes")
    rows = {column for it in observers.values() for column in it.observe if column[1] == EVERY_COLUMN}

    def node(column: Column) -> str:
        label = ".".join(column)
        graph.add_node(
            label, kind="column", table=column[0], column=column[1], notify_only=column in notify_only
        )
        return label

    for observer in observers.values():
        graph.add_node(
            observer.name,
            kind="observer",
            mode=observer.mode,
            feedback=observer.feedback,
            executor=observer.executor,
            function=observer.function_name,
            description=observer.description,
        )
        for column in observer.observe:
            graph.add_edge(node(column), observer.name, kind="observe", mode=observer.mode)
        for column in observer.reads:
            for source in _single(column, written):
                if source not in observer.observe:
                    graph.add_edge(node(source), observer.name, kind="reads")
        for column in observer.writes:
            whole = {(column[0], EVERY_COLUMN)} & rows if column not in notify_only else set()
            for target in sorted({*_single(column, used), *whole}):
                graph.add_edge(observer.name, node(target), kind="writes", feedback=False)
    _mark_feedback(graph)
    return graph


def _by_table(
    observers: Iterable[Observer], notify_only: set[Column], *fields: Literal["observe", "reads", "writes"]
) -> dict[str, list[Column]]:
    """Return, by table, the columns that hold data and that these fields of the observers name."""
    named = {column for observer in observers for field in fields for column in getattr(observer, field)}
    found: dict[str, list[Column]] = {}
    for column in sorted(named - notify_only):
        found.setdefault(column[0], []).append(column)
    return found


def _single(column: Column, of_table: Mapping[str, Sequence[Column]]) -> Sequence[Column]:
    """Return the columns that a reference means: those ``of_table`` if it is ``table.*``."""
    return of_table.get(column[0], [column]) if column[1] == EVERY_COLUMN else [column]


def without_reads(graph: Graph) -> Graph:
    """Return the graph with only the edges that wake observers: observe and writes."""
    waking: Graph = nx.DiGraph()
    waking.add_nodes_from(graph)
    waking.add_edges_from((s, t) for s, t, edge in graph.edges(data=True) if edge["kind"] != "reads")
    return waking


def without_loops(graph: Graph) -> Graph:
    """Return the graph that `without_reads` returns, minus the edges that close a declared loop: acyclic."""
    waking = without_reads(graph)
    waking.remove_edges_from([(s, t) for s, t, edge in graph.edges(data=True) if edge.get("feedback")])
    return waking


def undeclared_cycles(graph: Graph) -> list[list[str]]:
    """Return the cycles that no ``feedback: true`` breaks, one from each strongly connected component.

    Each cycle starts and ends with the same observer. The time is linear in the number of edges.
    """
    open_graph = without_loops(graph)
    cycles = []
    for component in nx.strongly_connected_components(open_graph):
        # No edge leads from a node to itself, because observers and columns alternate.
        if len(component) > 1:
            first = min(node for node in component if graph.nodes[node]["kind"] == "observer")
            cycles.append(_shortest_cycle(open_graph.subgraph(component), first))
    return sorted(cycles)


def generations(graph: Graph) -> list[list[str]]:
    """Return the observers' names in generations: each observer comes after the observers that wake it."""
    ordered = []
    for generation in nx.topological_generations(without_loops(graph)):
        names = sorted(node for node in generation if graph.nodes[node]["kind"] == "observer")
        if names:
            ordered.append(names)
    return ordered


def loop_columns(graph: Graph) -> dict[str, frozenset[str]]:
    """Return for each observer the columns of its loop, as ``table.column``; an empty set means no loop."""
    found: dict[str, frozenset[str]] = {}
    for component in nx.strongly_connected_components(without_reads(graph)):
        observers = [node for node in component if graph.nodes[node]["kind"] == "observer"]
        found.update(dict.fromkeys(observers, frozenset(component.difference(observers))))
    return found


def leading_to(graph: Graph) -> dict[str, frozenset[str]]:
    """Return, for each observer, the observers outside its loop that wake it, directly or through others."""
    # A node of this graph is a loop with all its observers and columns, or a single observer or column.
    loops: nx.DiGraph[Any] = nx.condensation(without_reads(graph))
    every: dict[int, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for loop in nx.topological_sort(loops):
        before = frozenset[str]().union(*(every[one] for one in loops.predecessors(loop)))
        members = [node for node in loops.nodes[loop]["members"] if graph.nodes[node]["kind"] == "observer"]
        found.update(dict.fromkeys(members, before))
        every[loop] = before.union(members)
    return found


def _mark_feedback(graph: Graph) -> None:
    """Mark the edges that close a declared loop: from a feedback observer to a column that leads back to it.

    Without these edges, the observer is in no cycle, and follows the observers that wake it.
    """
    for component in nx.strongly_connected_components(without_reads(graph)):
        for node in component:
            if graph.nodes[node].get("feedback"):
                for column in graph.successors(node):
                    if column in component:
                        graph.edges[node, column]["feedback"] = True


def _shortest_cycle(graph: Graph, first: str) -> list[str]:
    """Return the shortest cycle through ``first``."""
    came_from = dict(nx.bfs_predecessors(graph, first, sort_neighbors=sorted))
    cycle = [first, next(node for node in came_from if graph.has_edge(node, first))]
    while cycle[-1] != first:
        cycle.append(came_from[cycle[-1]])
    return cycle[::-1]
