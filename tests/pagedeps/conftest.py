"""The dependency tracker on a real embedded store: one server for all tests, a namespace for each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

import percolator_core as percolator
from observers.pagedeps.checker import check, needless
from observers.webindex.checker import Violation
from percolator_core import Cell, Chain, Database, Worker
from percolator_core.worker import Counts
from schemas.pagedeps import Made
from tests.servers.plain import PATIENCE

CHAIN = Path(__file__).parents[2] / "observers" / "pagedeps"

namespaces = (f"pagedeps{number}" for number in count())


@dataclass
class Tracker:
    """A chain on a store, with helpers for the tests."""

    db: Database
    chain: Chain

    def pages(self, pages: Mapping[str, str | None]) -> None:
        self._put("pages", "html", pages)

    def resources(self, resources: Mapping[str, str | None]) -> None:
        self._put("resources", "content", resources)

    def _put(self, table: str, column: str, contents: Mapping[str, str | None]) -> None:
        with self.db.transaction() as t:
            for row, content in contents.items():
                if content is None:
                    t.delete(table, row, column)
                else:
                    t.set(table, row, column, content.encode())

    def run(self) -> Counts:
        """Run until idle."""
        counts = Worker(self.db, self.chain).run_until_idle(timeout=PATIENCE)
        assert counts.quarantined == 0
        return counts

    def settled(self) -> set[str]:
        """Run until idle, expect no violation, and return the rendered pages."""
        before = self.renders()
        self.run()
        assert self.violations() == []
        after = self.renders()
        return {page for page in after if after[page] != before.get(page)}

    def violations(self) -> list[Violation]:
        return [*check(self.db.snapshot()), *needless(self.db)]

    def renders(self) -> dict[str, int]:
        rows = self.db.snapshot().scan("pages", columns=["made"])
        return {page.decode(): Made.decode(cells["made"]).renders for page, cells in rows}

    def snapshot(self, page: str) -> str:
        value = self.db.snapshot().get("pages", page, "snapshot")
        assert value is not None
        return value.decode("utf-8-sig")

    def cell(self, table: str, row: str, column: str) -> Cell:
        """Return the cell that a worker would pass to an observer now."""
        return Cell(table, row.encode(), column, self.db.timestamp())


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('pagedeps') / 'state'}"
    # Keeps the server running between the tests.
    with percolator.connect(url):
        yield url


@pytest.fixture
def tracker(store_url: str) -> Iterator[Tracker]:
    chain = Chain.load(CHAIN)
    with percolator.connect(store_url, namespace=next(namespaces)) as db:
        chain.create_tables(db)
        yield Tracker(db, chain)


def page(*names: str, text: str = "") -> str:
    """A page that uses style sheets and images."""
    head = "".join(f'<link rel=stylesheet href="{name}">' for name in names if name.endswith(".css"))
    body = "".join(f'<img src="{name}">' for name in names if not name.endswith(".css"))
    return f"<!DOCTYPE html><title>t</title>{head}<body>{text}{body}"


def sheet(*names: str, text: str = "") -> str:
    """A style sheet that imports others and shows images."""
    imports = "".join(f'@import "{name}";\n' for name in names if name.endswith(".css"))
    shown = "".join(f"p {{ background: url({name}) }}\n" for name in names if not name.endswith(".css"))
    return f"{imports}{shown}/* */ b {{ content: '{text}' }}"


PAGES = [f"p{number}.html" for number in range(6)]
SHEETS = [f"s{number}.css" for number in range(5)]
IMAGES = [f"i{number}.png" for number in range(4)]


def mutate(tracker: Tracker, rng: random.Random) -> None:
    """Change, add or delete a page or resource, or write it again unchanged."""
    text = str(rng.randrange(3))
    match rng.randrange(8):
        case 0 | 1:
            tracker.pages({rng.choice(PAGES): page(*some(rng, SHEETS + IMAGES), text=text)})
        case 2 | 3:
            tracker.resources({rng.choice(SHEETS): sheet(*some(rng, SHEETS + IMAGES), text=text)})
        case 4:
            tracker.resources({rng.choice(IMAGES): text})
        case 5:
            tracker.resources({rng.choice(SHEETS + IMAGES): None})
        case 6:
            tracker.pages({rng.choice(PAGES): None})
        case _:
            content_type = rng.choice([b"text/css", b"image/gif", b"text/plain"])
            with tracker.db.transaction() as t:
                t.set("resources", rng.choice(SHEETS + IMAGES), "content_type", content_type)


def some(rng: random.Random, names: Sequence[str]) -> list[str]:
    return rng.sample(names, rng.randrange(4))
