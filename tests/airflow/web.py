"""A chain of two observers for a user with all permissions; and pages parsed by a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import percolator_core as percolator
from percolator_core import Chain
from tests.airflow.pages import OBSERVERS, PAGE, give_dag, split_and_join, write_chain

if TYPE_CHECKING:
    from tests.airflow.pages import Site

TABLES = "{docs: {tablets: 2}, out: {tablets: 2}}\nairflow: {monitor: {thresholds: {backlog: 40}}}"


class Reader(HTMLParser):
    """The parsed page: each element with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def row_of(page: str, observer: str) -> dict[str, str]:
    """Return the figures of an observer in the table, by column."""
    found = re.search(rf'<tr [^>]*id="row-{observer}">(.*?)</tr>', page, re.DOTALL)
    assert found is not None
    cells = re.findall(r'<td [^>]*data-name="([^"]*)"[^>]*>(.*?)</td>', found[1], re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", text).split()) for name, text in cells}


class Web:
    """A chain with a database of its own, and a user with all permissions."""

    def __init__(self, name: str, folder: Path, db: percolator.Database, pages: Site) -> None:
        self.name, self.folder, self.db = name, folder, db
        self.chain = Chain.load(folder, import_functions=False)
        self.client = pages.as_("VIEWER", follow_redirects=False)

    def look(self, path: str = "") -> str:
        answer = self.client.get(f"/{self.name}/{path}", headers=PAGE)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def write(self, count: int, first: int = 0) -> None:
        with self.db.transaction() as t:
            for number in range(first, first + count):
                t.set("docs", f"d{number}", "text", b"x")

    def work(self, *observers: str, wrong: frozenset[str] = frozenset()) -> None:
        """Run the observers until the chain is idle; rows in ``wrong`` fail."""
        split_and_join(self.db, self.chain, dict.fromkeys(wrong, ValueError("not this one")), observers)


_numbers = iter(range(1000))


@contextmanager
def web_of(site: Site, url: str, folder: Path) -> Iterator[Web]:
    """A new chain, without tables."""
    name = f"web{next(_numbers)}"
    chain = write_chain(folder / name, name, TABLES, OBSERVERS)
    give_dag(chain, name)
    with percolator.connect(url, name) as db:
        yield Web(name, chain, db, site)
