"""The stress suite, tiny: what is counted, and that a wrong count is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from percolator_bench import Figure, Note, Scale, Target, stress, trie
from percolator_bench.servers import Place, place
from percolator_bench.stress import Trie
from percolator_bench.trie import SEEN, TABLE, Node, Shape
from percolator_core.errors import PercolatorError
from percolator_core.observers import Chain, ObserverTransaction
from percolator_core.worker import Worker
from tests.servers.plain import PATIENCE


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


@pytest.fixture
def counted(here: Place) -> Callable[[Shape], Trie]:
    """Makes a trie whose observers run in this process."""

    def make(shape: Shape) -> Trie:
        # Loaded when it is made: what a test has replaced in the module is what runs.
        chain = Chain.load(Path(trie.__file__).parent)
        chain.create_tables(here.db)

        def wait() -> None:
            Worker(here.db, chain).run_until_idle(PATIENCE)

        return Trie(here.db, shape, wait)

    return make


def seen(here: Place, node: Node) -> bytes | None:
    return here.db.snapshot().get(TABLE, node.row, SEEN)


def test_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "WORKERS", (1,))
    monkeypatch.setattr(stress, "BATCHES", 2)
    made = list(stress.measure(Scale(numbers=100, rounds=1)))
    figures = {figure.name: figure for figure in made if isinstance(figure, Figure)}
    assert {(figure.suite, figure.axis, figure.at) for figure in figures.values()} == {
        ("stress", "workers", 1)
    }
    rate = figures["transactions"]
    assert (rate.unit, rate.target) == ("/s", Target("at least", 6000))
    # An integer is inserted, its leaf runs, and a level above runs for one integer or more.
    assert rate.value > 2 * figures["integers"].value
    assert 0 < figures["runs saved by collapsing notifications"].value < 1
    for share in ("attempts lost to conflicts", "marks that were dealt with already"):
        assert 0 <= figures[share].value < 1
    assert figures["a small batch, until it is counted"].samples == 2
    (note,) = (one for one in made if isinstance(one, Note))
    assert "every count was exact: 10" in note.text


def test_a_root_counts_distinct_integers(here: Place, counted: Callable[[Shape], Trie]) -> None:
    shape = Shape("one")
    made = counted(shape)
    known: set[int] = set()
    first = made.load([0, 1, 255, 256, 2**64 - 1, 1], known)
    assert (first.inserts, len(known)) == (5, 5)
    # What is there already changes nothing.
    assert made.load([1, 2**64 - 1, 7], known).inserts == 1
    assert seen(here, Node(shape, 0, 0)) == b"6"
    # The levels between: of 0, 1, 7, 255 and 256 the first four share all but the last bits.
    assert seen(here, Node(shape, 7, 0)) == b"4"
    assert seen(here, Node(shape, 6, 0)) == b"5"
    made.check(6)


def test_a_trie_may_stop_further_down(here: Place, counted: Callable[[Shape], Trie]) -> None:
    shape = Shape("many", bits=4, stop=14)
    made = counted(shape)
    made.load([0, 15, 16, 256, 300], set())
    roots = list(here.db.snapshot().scan(TABLE, prefix=shape.prefix(14)))
    assert len(roots) == 2
    assert not list(here.db.snapshot().scan(TABLE, prefix=shape.prefix(13)))
    made.check(5)


def test_a_lost_update_is_an_error(monkeypatch: pytest.MonkeyPatch, counted: Callable[[Shape], Trie]) -> None:
    whole = trie.pass_on

    def loses_one(t: ObserverTransaction, node: Node, count: int) -> None:
        if node.level != 8 or node.number != 17:
            whole(t, node, count)

    monkeypatch.setattr(trie, "pass_on", loses_one)
    with pytest.raises(PercolatorError, match="counts 29 integers at level 0, and 30 distinct ones"):
        counted(Shape("lossy")).load(range(30), set())


def test_a_wrong_count_between_is_an_error(here: Place, counted: Callable[[Shape], Trie]) -> None:
    shape = Shape("planted")
    made = counted(shape)
    made.load(range(300), set())
    made.check(300)
    with here.db.transaction() as t:
        t.set(TABLE, Node(shape, 7, 1).row, SEEN, b"45")
    with pytest.raises(PercolatorError, match="counts 301 integers at level 7"):
        made.check(300)


def test_a_row_tells_its_node() -> None:
    shape = Shape("name")
    assert (shape.leaf(0xABCD).column, shape.leaf(0xABCD).parent) == ("cd", Node(shape, 7, 0xAB))
    for bits in trie.WIDTHS:
        shape = Shape("name", bits, 1)
        node: Node | None = shape.leaf(2**64 - 2)
        passed = 0
        while node is not None:
            assert Node.of_row(node.row) == node
            passed += 1
            node = node.parent
        assert passed == shape.levels


@pytest.mark.parametrize(("bits", "stop"), [(3, 0), (16, 0), (8, 8), (8, -1)])
def test_a_shape_that_cannot_be_is_refused(bits: int, stop: int) -> None:
    with pytest.raises(ValueError, match="bits is one of"):
        Shape("bad", bits, stop)
