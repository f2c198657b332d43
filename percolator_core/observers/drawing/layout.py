"""Compute the positions of the boxes and lines of a chain's drawing, with a short form of Sugiyama's method.

Layers of columns and of observers alternate from left to right. A line that passes a layer gets a slot there,
so that it never runs behind a box. The order within a layer follows the order of the neighbouring layers. The
y of a box is as near to the mean of its neighbours as possible. Lines that lead back run in lanes below the
drawing. Positions are in pixels, y downwards. A drawing from top to bottom is mirrored at its diagonal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import networkx as nx

from percolator_core.errors import abbreviated
from percolator_core.observers.graph import without_loops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from percolator_core.observers.graph import Graph

Point = tuple[float, float]
Step = tuple[str, tuple[Point, ...]]
"""A step of an SVG path: ("M", (to,)), ("L", (to,)), ("Q", (control, to)) or ("C", (c1, c2, to))."""

CHARACTER: Final = 7.85
"""The width of a character of the 13-pixel monospaced labels."""
MARGIN: Final = 28.0
TITLE_HEIGHT: Final = 44.0

_BETWEEN: Final = 18.0
_LANE: Final = 16.0
_ROUND: Final = 9.0
_SWEEPS: Final = 12
_SLOT_HEIGHT: Final = 12.0


@dataclass(frozen=True, slots=True)
class BoxSize:
    """The height and the least width of an observer's box, and the gap between two layers."""

    width: float = 128.0
    height: float = 46.0
    gap: float = 52.0


DEFAULT_SIZE: Final = BoxSize()
"""The name and a line below it fit into a box of this size."""


@dataclass(slots=True)
class Box:
    """The box of a node, or the slot of a line; ``x`` and ``y`` are the upper left corner."""

    node: str
    layer: int
    width: float
    height: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        """The y of the centre."""
        return self.y + self.height / 2

    @property
    def label(self) -> tuple[str, str]:
        """The two parts of a column's text: ``table.`` and its name; for several columns, their number."""
        if columns := self.attributes.get("columns"):
            return self.attributes["table"], f" {len(columns)} columns"
        return f"{self.attributes['table']}.", abbreviated(self.attributes["column"])


@dataclass(frozen=True, slots=True)
class Line:
    """The path of an edge, from the right side of its source to the left side of its target."""

    source: str
    target: str
    attributes: Mapping[str, Any]
    path: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes and lines of a drawing, its width and height; ``down``: the layers run from top to bottom."""

    name: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: float
    height: float
    down: bool = False


def lay_out(graph: Graph, observer_size: BoxSize = DEFAULT_SIZE, *, down: bool = False) -> Drawing:
    """Compute the drawing of a chain's graph; ``down``: the layers run from top to bottom."""
    layers = layers_of(graph)
    boxes = {node: _box(node, layers[node], graph.nodes[node], observer_size) for node in graph}
    if down:
        for box in boxes.values():
            box.width, box.height = box.height, box.width
    forward = [(s, t) for s, t in graph.edges if layers[s] < layers[t]]
    back = [(s, t) for s, t in graph.edges if layers[s] >= layers[t]]
    routes = {edge: _slots(edge, boxes) for edge in forward}
    rows = _ordered(boxes, routes.values())
    _place_down(rows, routes.values())
    right = _place_across(rows, len(back), observer_size.gap)
    bottom = max((box.y + box.height for row in rows for box in row), default=TITLE_HEIGHT)
    lines = [
        Line(s, t, graph.edges[s, t], _forward_path([boxes[node] for node in route]))
        for (s, t), route in routes.items()
    ]
    for lane, (s, t) in enumerate(sorted(back, key=lambda edge: layers[edge[0]] - layers[edge[1]])):
        path = _lane_path(boxes[s], boxes[t], rows, lane, bottom + 22 + lane * _LANE)
        lines.append(Line(s, t, graph.edges[s, t], path))
    if back:
        bottom += 22 + len(back) * _LANE
    seen = tuple(boxes[node] for node in graph)
    made = Drawing(str(graph.graph.get("name", "")), seen, tuple(lines), right + MARGIN, bottom + MARGIN)
    return _mirrored(made) if down else made


def _mirrored(drawing: Drawing) -> Drawing:
    """Return the drawing with x and y exchanged; the space for the title stays above it."""

    def moved(point: Point) -> Point:
        return point[1] - TITLE_HEIGHT, point[0] + TITLE_HEIGHT

    for box in drawing.boxes:
        box.x, box.y = moved((box.x, box.y))
        box.width, box.height = box.height, box.width
    lines = tuple(
        replace(line, path=tuple((letter, tuple(map(moved, points))) for letter, points in line.path))
        for line in drawing.lines
    )
    width, height = moved((drawing.width, drawing.height))
    return replace(drawing, lines=lines, width=width, height=height, down=True)


def layers_of(graph: Graph) -> dict[str, int]:
    """Return the layer of each node: even for a column, odd for an observer. Ignore declared loops."""
    waking = without_loops(graph)
    layers: dict[str, int] = {}
    for node in nx.topological_sort(waking):
        least = 1 if graph.nodes[node]["kind"] == "observer" else 0
        layers[node] = max((layers[before] + 1 for before in waking.predecessors(node)), default=least)
        layers[node] = max(layers[node], least)
    for node in graph:
        # A column that no observer writes is in the layer before its first observer.
        if not waking.pred[node] and graph.succ[node]:
            layers[node] = min(layers[after] for after in graph.successors(node)) - 1
    return layers


def _box(node: str, layer: int, attributes: Mapping[str, Any], size: BoxSize) -> Box:
    if attributes["kind"] == "observer":
        return Box(node, layer, max(len(node) * CHARACTER + 34, size.width), size.height, attributes)
    box = Box(node, layer, 0.0, 28.0, attributes)
    box.width = len("".join(box.label)) * CHARACTER + 28
    return box


def _slots(edge: tuple[str, str], boxes: dict[str, Box]) -> list[str]:
    """Return the nodes of an edge's route: its ends, and a new slot in each layer between them."""
    source, target = edge
    route = [source]
    for layer in range(boxes[source].layer + 1, boxes[target].layer):
        slot = f"{source}\0{target}\0{layer}"
        boxes[slot] = Box(slot, layer, 0.0, _SLOT_HEIGHT)
        route.append(slot)
    return [*route, target]


def _neighbours(routes: Iterable[Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for route in routes:
        for left, right in pairwise(route):
            after.setdefault(left, []).append(right)
            before.setdefault(right, []).append(left)
    return before, after


def _ordered(boxes: Mapping[str, Box], routes: Iterable[Sequence[str]]) -> list[list[Box]]:
    """Return the layers, each in the order with the fewest crossings that several sweeps find."""
    before, after = _neighbours(routes)
    rows: list[list[str]] = [[] for _ in range(max((box.layer for box in boxes.values()), default=-1) + 1)]
    for node, box in boxes.items():
        rows[box.layer].append(node)
    best, fewest = [list(row) for row in rows], _crossings(rows, after)
    for sweep in range(_SWEEPS):
        near, order = (before, rows) if sweep % 2 == 0 else (after, rows[::-1])
        position = {node: float(index) for row in rows for index, node in enumerate(row)}
        for row in order:
            weight = {
                node: sum(position[other] for other in near[node]) / len(near[node])
                if near.get(node)
                else position[node]
                for node in row
            }
            row.sort(key=weight.__getitem__)
            position.update((node, float(index)) for index, node in enumerate(row))
        crossings = _crossings(rows, after)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return [[boxes[node] for node in row] for row in best]


def _crossings(rows: Sequence[Sequence[str]], after: Mapping[str, Sequence[str]]) -> int:
    """Count the pairs of lines that cross between neighbouring layers."""
    total = 0
    for row, following in pairwise(rows):
        position = {node: index for index, node in enumerate(following)}
        ends: list[int] = []
        for node in row:
            targets = sorted(position[other] for other in after.get(node, ()))
            for end in targets:
                total += len(ends) - bisect_left(ends, end + 1)
            for end in targets:
                insort(ends, end)
    return total


def _place_down(rows: Sequence[Sequence[Box]], routes: Iterable[Sequence[str]]) -> None:
    """Set the y of each box: near the mean of its neighbours, without overlap or a change of the order."""
    before, after = _neighbours(routes)
    boxes = {box.node: box for row in rows for box in row}
    for row in rows:
        _settle(row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        near, order = (before, rows) if sweep % 2 == 0 else (after, rows[::-1])
        for row in order:
            wanted = []
            for box in row:
                others = [boxes[node].middle for node in near.get(box.node, ())]
                wanted.append(sum(others) / len(others) if others else box.middle)
            _settle(row, wanted)
    top = min((box.y for row in rows for box in row), default=0.0)
    for box in boxes.values():
        box.y += MARGIN + TITLE_HEIGHT - top


def _settle(row: Sequence[Box], wanted: Sequence[float]) -> None:
    """Move the boxes as near to the wanted centres as order and distances allow, by least squares.

    After the distances are subtracted, this is isotonic regression: neighbours in the wrong order get their
    common mean.
    """
    offsets, offset, previous = [], 0.0, 0.0
    for box in row:
        offset += previous / 2 + box.height / 2 + (_BETWEEN if previous else 0.0)
        previous = box.height
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    means = [mean for mean, count in pools for _ in range(count)]
    for box, mean, offset in zip(row, means, offsets, strict=True):
        box.y = mean + offset - box.height / 2


def _place_across(rows: Sequence[Sequence[Box]], lanes: int, gap: float) -> float:
    """Set the x of each box; a layer is as wide as its widest box. Return the right edge."""
    gap += 5.0 * min(lanes, 8)
    # Lines that lead back to the first layer need space at the left.
    left = MARGIN + (gap / 2 if lanes else 0.0)
    right = left
    for row in rows:
        width = max((box.width for box in row), default=0.0)
        for box in row:
            if not box.width:
                box.width = width
            box.x = left + (width - box.width) / 2
        right = left + width
        left = right + gap
    return right + (gap / 2 if lanes else 0.0)


def _forward_path(route: Sequence[Box]) -> tuple[Step, ...]:
    """Return a smooth curve through the slots of a route; in a slot the curve is straight."""
    first = route[0]
    steps: list[Step] = [("M", ((first.x + first.width, first.middle),))]
    for left, right in pairwise(route):
        start, end = (left.x + left.width, left.middle), (right.x, right.middle)
        bend = (end[0] - start[0]) * 0.5
        steps.append(("C", ((start[0] + bend, start[1]), (end[0] - bend, end[1]), end)))
        if right is not route[-1]:
            steps.append(("L", ((right.x + right.width, right.middle),)))
    return tuple(steps)


def _lane_path(
    source: Box, target: Box, rows: Sequence[Sequence[Box]], lane: int, lane_y: float
) -> tuple[Step, ...]:
    """Return a path that goes down after the source's layer, back below all boxes, and up to the target."""
    distance = 14.0 + 5.0 * (lane % 8)
    down = max(box.x + box.width for box in rows[source.layer]) + distance
    up = min(box.x for box in rows[target.layer]) - distance - _ROUND
    low = target.middle + min(8.0, target.height / 4)
    corners: list[Point] = [
        (source.x + source.width, source.middle),
        (down, source.middle),
        (down, lane_y),
        (up, lane_y),
        (up, low),
        (target.x, low),
    ]
    return _rounded(corners)


def _rounded(corners: Sequence[Point]) -> tuple[Step, ...]:
    steps: list[Step] = [("M", (corners[0],))]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        steps.append(("L", (_towards(corner, before),)))
        steps.append(("Q", (corner, _towards(corner, after))))
    return (*steps, ("L", (corners[-1],)))


def _towards(start: Point, end: Point) -> Point:
    """Return the point at a corner's radius from ``start``, on a horizontal or vertical line to ``end``."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = abs(dx) + abs(dy)
    part = min(_ROUND, length / 2) / length if length else 0.0
    return start[0] + dx * part, start[1] + dy * part
