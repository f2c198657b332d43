# ruff: noqa: INP001
"""Draw the layers of the packages and the imports between them, into docs/assets/.

The layers are those that import-linter checks (``pyproject.toml``). The arrows are the imports in the code.
Run ``architecture.py`` again after a change of either.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import grimp
import networkx as nx

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = {"layers": "architecture.svg", "airflow-layers": "architecture-airflow.svg"}
"""The picture's file, by the id of the contract."""

_ROW: Final = 46
_BOX: Final = (132, 30)
_LEFT: Final = 24
_TOP: Final = 62
_COLORS: Final = {
    "ground": ("fill:#ffffff", "fill:#11161d"),
    "title": ("fill:#16202c", "fill:#eef2f6"),
    "note": ("fill:#66727f", "fill:#97a3af"),
    "box": ("fill:#e9f1fe;stroke:#2f6bd0", "fill:#182c4d;stroke:#6ea2f7"),
    "name": ("fill:#123a78", "fill:#dce9ff"),
    "arc": ("stroke:#71808e", "stroke:#8e9caa"),
    "tip": ("fill:#71808e", "fill:#8e9caa"),
}
"""The light and dark colors of each class."""

_STYLE: Final = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".title{font-weight:700}.note{font-size:11px}.name{text-anchor:middle}.arc{fill:none;stroke-width:1.2}"
)
_MARKER: Final = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 1L10 5L0 9z"/></marker></defs>'
)


@dataclass(frozen=True)
class Layers:
    """The layers of a package, highest first, and the imports between their modules."""

    package: str
    rows: list[list[str]]
    imports: set[tuple[str, str]]

    def arrows(self) -> list[tuple[str, str]]:
        """Return the imports in the order of the rows; an import that other imports imply is left out."""
        line = {name: number for number, row in enumerate(self.rows) for name in row}
        down = nx.DiGraph(sorted(edge for edge in self.imports if line[edge[0]] < line[edge[1]]))
        beside = {edge for edge in self.imports if line[edge[0]] == line[edge[1]]}
        order = [name for row in self.rows for name in row]
        edges = {*nx.transitive_reduction(down).edges, *beside}
        return sorted(edges, key=lambda edge: (order.index(edge[0]), order.index(edge[1])))


def layers(contract: str, root: Path = ROOT) -> Layers:
    """Read the layers of a contract, and find the imports between them."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    found = next(one for one in contracts if one["id"] == contract)
    (package,) = found["containers"]
    rows = [line.replace("(", "").replace(")", "").replace("|", ":").split(":") for line in found["layers"]]
    names = [[name.strip() for name in row] for row in rows]
    graph = grimp.build_graph(package, cache_dir=None)
    for row in names:
        for name in row:
            if f"{package}.{name}" in graph.modules:
                graph.squash_module(f"{package}.{name}")
    known = {f"{package}.{name}": name for row in names for name in row}
    imports = {
        (known[importer], known[imported])
        for importer in known
        if importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if imported in known and imported != importer
    }
    return Layers(package, names, imports)


def picture(drawn: Layers) -> str:
    """Return the picture as SVG, which follows the reader's choice of light or dark."""
    width, height = _BOX
    places = {
        name: (_LEFT + column * (width + 14), _TOP + line * _ROW)
        for line, row in enumerate(drawn.rows)
        for column, name in enumerate(row)
    }
    arcs, right = _arcs(drawn, places)
    total = (right + 24, _TOP + len(drawn.rows) * _ROW + 6)
    light = "".join(f".{name}{{{colors[0]}}}" for name, colors in _COLORS.items())
    dark = "".join(f".{name}{{{colors[1]}}}" for name, colors in _COLORS.items())
    boxes = [
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
        f'<text class="name" x="{x + width // 2}" y="{y + 20}">{escape(name)}</text>'
        for name, (x, y) in places.items()
    ]
    size = f'width="{total[0]}" height="{total[1]}" viewBox="0 0 {total[0]} {total[1]}"'
    dark_style = f"@media(prefers-color-scheme:dark){{{dark}}}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">The layers of {drawn.package} and their imports</title>',
        f"<style>{_STYLE}{light}{dark_style}</style>",
        _MARKER,
        '<rect class="ground" width="100%" height="100%"/>',
        f'<text class="title" x="{_LEFT}" y="28">{drawn.package}</text>',
        f'<text class="note" x="{_LEFT}" y="46">an arrow: imports</text>',
        *arcs,
        *boxes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arcs(drawn: Layers, places: dict[str, tuple[int, int]]) -> tuple[list[str], int]:
    """Return the arrows: straight lines to the next row, and arcs right of the boxes to lower rows."""
    width, height = _BOX
    edge = max(x for x, _ in places.values()) + width
    paths, right = [], edge
    row_of = {name: line for line, row in enumerate(drawn.rows) for name in row}
    for importer, imported in drawn.arrows():
        (x1, y1), (x2, y2) = places[importer], places[imported]
        steps = row_of[imported] - row_of[importer]
        if steps == 1:
            path = f"M{x1 + width // 2} {y1 + height}L{x2 + width // 2} {y2}"
        elif steps == 0:
            # The arrow leads to the left or right neighbor: only modules of the top row import each other.
            x1, x2 = (x1, x2 + width) if x1 > x2 else (x1 + width, x2)
            path = f"M{x1} {y1 + height // 2}L{x2} {y2 + height // 2}"
        else:
            bow = edge + 14 + 15 * steps
            start, stop = y1 + height - 8, y2 + 8
            path = f"M{x1 + width} {start}C{bow} {start} {bow} {stop} {x2 + width} {stop}"
            right = max(right, (x1 + 3 * bow + 3 * bow + x2) // 8 + 40)
        paths.append(f'<path class="arc" d="{path}" marker-end="url(#tip)"/>')
    return paths, right


def main() -> None:
    """Write all pictures."""
    for contract, name in PICTURES.items():
        (ROOT / "docs" / "assets" / name).write_text(picture(layers(contract)), encoding="utf-8")


if __name__ == "__main__":
    main()
