"""The web index on a real embedded store: one server for all tests, a namespace and an index for each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

import percolator_core as percolator
from observers.webindex.checker import Violation, check
from observers.webindex.index import ServingIndex, close_indexes, open_index
from percolator_core import Chain, Database, Worker
from schemas.webindex import Entry, Standing
from tests.servers.plain import PATIENCE

CHAIN = Path(__file__).parents[2] / "observers" / "webindex"

namespaces = (f"webindex{number}" for number in count())


@dataclass
class WebIndex:
    """A chain on a store, with helpers for the tests."""

    db: Database
    chain: Chain
    index: ServingIndex

    def load(self, documents: Mapping[str, str | bytes]) -> None:
        with self.db.transaction() as t:
            for url, contents in documents.items():
                t.set(
                    "documents",
                    url,
                    "contents",
                    contents if isinstance(contents, bytes) else contents.encode(),
                )
                t.delete("documents", url, "redirect")

    def redirect(self, url: str, target: str) -> None:
        with self.db.transaction() as t:
            t.set("documents", url, "contents", b"")
            t.set("documents", url, "redirect", target.encode())

    def remove(self, *urls: str) -> None:
        with self.db.transaction() as t:
            for url in urls:
                t.delete_row("documents", url)

    def settle(self) -> dict[str, int]:
        """Run until idle; return the runs of each observer."""
        counts = Worker(self.db, self.chain).run_until_idle(timeout=PATIENCE)
        return {name: observer.ran for name, observer in counts.observers.items()}

    def violations(self) -> list[Violation]:
        return check(self.db.snapshot(), self.index)

    def settled(self) -> dict[str, Entry]:
        """Run until idle, expect no violation, and return the entries by the shown URL."""
        self.settle()
        assert self.violations() == []
        entries = [
            Entry.decode(cells["entry"]) for _, cells in self.db.snapshot().scan("serving", columns=["entry"])
        ]
        return {entry.url: entry for entry in entries}

    def rank(self, url: str) -> float:
        value = self.db.snapshot().get("pages", url, "rank")
        assert value is not None
        return Standing.decode(value).rank


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('webindex') / 'state'}"
    # Keeps the server running between the tests.
    with percolator.connect(url):
        yield url


@pytest.fixture
def web(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebIndex]:
    monkeypatch.setenv("PERCOLATOR_SERVING", str(tmp_path / "serving.db"))
    chain = Chain.load(CHAIN)
    with percolator.connect(store_url, namespace=next(namespaces)) as db:
        chain.create_tables(db)
        yield WebIndex(db, chain, open_index())
    close_indexes()


def page(text: str, links: Sequence[str] = (), canonical: str | None = None, noindex: bool = False) -> str:
    """An HTML page; each link's anchor text is the last part of its address."""
    head = f'<link rel=canonical href="{canonical}">' if canonical else ""
    head += "<meta name=robots content=noindex>" if noindex else ""
    body = "".join(f'<a href="{link}">{link.rpartition("/")[2]}</a> ' for link in links)
    return f"<html><head><title>{text}</title>{head}</head><body><p>{text}</p>{body}</body></html>"


def random_document(rng: random.Random, urls: Sequence[str]) -> str:
    """Return a page with one of few contents, so that duplicates are frequent."""
    kind = rng.randrange(5)
    same = random.Random(kind)
    chance = same if rng.random() < 0.5 else rng
    links = [chance.choice(urls) for _ in range(chance.randrange(5))]
    canonical = rng.choice(urls) if rng.random() < 0.2 else None
    return page(f"subject {kind}", links, canonical, noindex=rng.random() < 0.05)
