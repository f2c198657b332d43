"""A bitwise trie that counts unique integers: the chain of `percolator_bench.stress`.

A number of 64 bits is a leaf. The parent of a node has the number without its last bits, up to the level at
which the trie stops. Each node has a row: ``wait`` (leaves only) shows that the number was inserted, ``seen``
is the count that the parent has received. An inner node also has a cell for each child, with the child's
count.

A child writes its count, not the change of the count, into a cell of its own. So siblings never conflict, and
the last run of the parent sees all counts in any order of the writes. The child notifies the parent weakly;
any number of such notifications becomes one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from percolator_core.layout.records import Cell
from percolator_core.observers import ObserverTransaction

TABLE: Final = "nodes"
WAIT: Final = "wait"
SEEN: Final = "seen"
CHANGED: Final = "changed"

WIDTHS: Final = (1, 2, 4, 8)
"""The possible numbers of bits that each level adds: a parent has up to 256 cells for its children."""

_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """A trie: its name, the number of bits that each level adds, and the level of its roots.

    ``stop`` is the level of the roots: 0 for a single root, at most the level above the leaves. The closer it
    is to the leaves, the more roots there are, and the fewer children write to each.
    """

    name: str
    bits: int = 8
    stop: int = 0

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS or not 0 <= self.stop < self.levels:
            raise ValueError(
                f"bits is one of {WIDTHS}, and stop is from 0 to the level above the leaves: not bits "
                f"{self.bits} with stop {self.stop}"
            )

    @property
    def levels(self) -> int:
        """The level of the leaves."""
        return _BITS // self.bits

    def leaf(self, number: int) -> Node:
        """The leaf of a number of 0 to 2**64 - 1."""
        return Node(self, self.levels, number)

    def prefix(self, level: int) -> bytes:
        """The prefix of the rows of a level."""
        return f"{self.name}/{self.bits}/{self.stop}/{level:02}/".encode()


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a trie; ``number`` has the bits down to its level."""

    shape: Shape
    level: int
    number: int

    @classmethod
    def of_row(cls, row: bytes) -> Node:
        """The inverse of `row`."""
        name, bits, stop, level, number = row.decode().split("/")
        return cls(Shape(name, int(bits), int(stop)), int(level), int(number, 16))

    @property
    def row(self) -> bytes:
        """The row's key, which identifies the node."""
        return self.shape.prefix(self.level) + b"%x" % self.number

    @property
    def parent(self) -> Node | None:
        """The node above; None for a root."""
        if self.level == self.shape.stop:
            return None
        return Node(self.shape, self.level - 1, self.number >> self.shape.bits)

    @property
    def column(self) -> str:
        """The cell in the parent's row with this node's count."""
        return f"{self.number & ((1 << self.shape.bits) - 1):02x}"


def insert(t: ObserverTransaction, cell: Cell) -> None:
    """Count 1 for the number of a leaf (a strong observer)."""
    if t.get(TABLE, cell.row, SEEN) is None:
        pass_on(t, Node.of_row(cell.row), 1)


def add_up(t: ObserverTransaction, cell: Cell) -> None:
    """Sum the counts of the children of an inner node (a weak observer)."""
    counts = t.get_row(TABLE, cell.row)
    seen = counts.pop(SEEN, None)
    count = sum(map(int, counts.values()))
    if seen is None or int(seen) != count:
        pass_on(t, Node.of_row(cell.row), count)


def pass_on(t: ObserverTransaction, node: Node, count: int) -> None:
    """Write the count of a node into its cell in the parent's row, and notify the parent."""
    value = b"%d" % count
    t.set(TABLE, node.row, SEEN, value)
    parent = node.parent
    if parent is not None:
        t.set(TABLE, parent.row, node.column, value)
        t.notify(TABLE, parent.row, CHANGED)
