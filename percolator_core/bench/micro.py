"""Single operations beside the raw store (paper, figure 8), and what the hub gains over one after another.

Raw means redis-py as a user would call it (``redis.Redis(...).get(key)``), with the same values on the same
server; under the hub, which redis-py has nothing like, raw means plain GET and SET issued through the same
hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from percolator_core.bench.figure import Figure, Target, median_figure
from percolator_core.bench.rounds import Contestant, Rates, race
from percolator_core.bench.scale import Scale
from percolator_core.bench.servers import TRANSPORTS, Place, place
from percolator_core.transaction import Transaction

VALUE: Final = b"x" * 100
WIDTHS: Final = (16, 64, 256)
GETS: Final = 20
"""Reads of one transaction, where reading is what is measured; raw runs in bunches of as many."""

READ: Final = Target("at least", 0.90)
WRITE: Final = Target("at least", 0.45)
HUB_GAIN: Final = Target("at least", 8.0)

_TABLE: Final = "bench"
_LOADED: Final = 5000
_RATIOS: Final = (
    ("get", "raw get", READ),
    ("hub get", "hub raw get", READ),
    ("write", "raw set", WRITE),
    ("hub write", "hub raw set", None),
    ("one get a transaction", "raw get", None),
)


def measure(scale: Scale) -> Iterator[Figure]:
    """The figures, over a Unix socket and over TCP."""
    for transport in TRANSPORTS:
        with place(transport) as here:
            work = _Work(here, min(_LOADED, max(GETS, scale.operations)))
            work.load()
            rates = race(work.contestants(scale), scale.rounds)
        yield from _figures(here.name, rates)


def _figures(where: str, rates: Rates) -> Iterator[Figure]:
    for name in rates.by_name:
        yield median_figure("micro", where, name, "/s", samples=rates.of(name))
    for name, base, target in _RATIOS:
        ratio = rates.ratio(name, base)
        yield median_figure("micro", where, f"{name} ÷ {base}", "ratio", samples=ratio, target=target)
    for width in WIDTHS:
        target = HUB_GAIN if width == max(WIDTHS) else None
        ratio = rates.ratio(f"hub 2r2w, width {width}", "2r2w")
        yield median_figure(
            "micro", where, f"hub 2r2w, width {width} ÷ 2r2w", "ratio", samples=ratio, target=target
        )


class _Work:
    """The operations on one server. Numbers of rows run on for ever; reads go to the first ``loaded``."""

    def __init__(self, here: Place, loaded: int) -> None:
        self._db = here.db
        self._raw = here.raw
        self._loaded = loaded

    def load(self) -> None:
        """Make the table, and the rows that reads find, in both worlds."""
        self._db.create_table(_TABLE)
        for number in range(self._loaded):
            self._raw.set(b"raw:%d" % number, VALUE)
        self._under_hub(self._write, 256)(0, self._loaded)

    def contestants(self, scale: Scale) -> dict[str, Contestant]:
        """All that is raced, by name."""
        few, many = scale.operations, scale.operations * 5
        width = max(WIDTHS)
        found = {
            "raw get": Contestant(_in_turn(self._raw_get), few),
            "get": Contestant(self._gets_in_turn, few),
            "one get a transaction": Contestant(_in_turn(self._get_alone), few),
            "raw set": Contestant(_in_turn(self._raw_set), few),
            "write": Contestant(_in_turn(self._write), few),
            "2r2w": Contestant(_in_turn(self._two_and_two), few),
            "hub raw get": Contestant(self._bunches_under_hub(self._raw_gets, width), many),
            "hub get": Contestant(self._bunches_under_hub(self._gets, width), many),
            "hub raw set": Contestant(self._under_hub(self._hub_raw_set, width), many),
            "hub write": Contestant(self._under_hub(self._write, width), many),
        }
        for size in WIDTHS:
            found[f"hub 2r2w, width {size}"] = Contestant(self._under_hub(self._two_and_two, size), many)
        return found

    # One operation each.

    def _raw_get(self, number: int) -> None:
        self._raw.get(b"raw:%d" % (number % self._loaded))

    def _raw_set(self, number: int) -> None:
        self._raw.set(b"raw:%d" % number, VALUE)

    def _hub_raw_set(self, number: int) -> None:
        self._db.store.one((b"SET", b"raw:%d" % number, VALUE))

    def _get_alone(self, number: int) -> None:
        with self._db.transaction() as t:
            t.get(_TABLE, b"row:%d" % (number % self._loaded), "c")

    def _write(self, number: int) -> None:
        with self._db.transaction() as t:
            t.set(_TABLE, b"row:%d" % number, "c", VALUE)

    def _two_and_two(self, number: int) -> None:
        with self._db.transaction() as t:
            self._get(t, number)
            self._get(t, number + 7)
            t.set(_TABLE, b"row:%d" % number, "c", VALUE)
            t.set(_TABLE, b"row:%d" % (number + 1_000_000_000), "c", VALUE)

    def _get(self, t: Transaction, number: int) -> None:
        t.get(_TABLE, b"row:%d" % (number % self._loaded), "c")

    # Bunches of reads.

    def _gets(self, first: int, count: int) -> None:
        with self._db.transaction() as t:
            for number in range(first, first + count):
                self._get(t, number)

    def _raw_gets(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._db.store.one((b"GET", b"raw:%d" % (number % self._loaded)))

    def _gets_in_turn(self, first: int, count: int) -> None:
        for start, length in _bunches(first, count):
            self._gets(start, length)

    # Ways to run them.

    def _under_hub(self, one: Callable[[int], None], width: int) -> Callable[[int, int], None]:
        def run(first: int, count: int) -> None:
            with self._db.concurrency(width) as executor:
                for _ in executor.map(one, range(first, first + count)):
                    pass

        return run

    def _bunches_under_hub(self, some: Callable[[int, int], None], width: int) -> Callable[[int, int], None]:
        def bunch(bounds: Any) -> None:
            some(*bounds)

        def run(first: int, count: int) -> None:
            with self._db.concurrency(width) as executor:
                for _ in executor.map(bunch, _bunches(first, count)):
                    pass

        return run


def _in_turn(one: Callable[[int], None]) -> Callable[[int, int], None]:
    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            one(number)

    return run


def _bunches(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, GETS):
        yield start, min(GETS, first + count - start)
