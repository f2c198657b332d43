"""A chain that splits texts into words, its pages, and a store with a namespace for each test."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from percolator_core import Chain, Database, Worker, connect
from tests.airflow.pages import PAGE, WRITE, Site, connection_to, forget_dags, give_dag, site, write_chain
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from starlette.testclient import TestClient

TABLES = "{docs: {tablets: 4}, words: {tablets: 2, notify_only: [dirty]}}"
OBSERVERS = {
    "split": "observe: docs.text\nwrites: [words.count, words.dirty]\nretry: {attempts: 1}",
    "measure": "observe: docs.text\nwrites: [docs.length]\nretry: {attempts: 1}",
    "total": "observe: words.dirty\nmode: weak\nwrites: [words.total]",
}


def split(t: Any, cell: Any) -> None:
    text = t.get(cell.table, cell.row, cell.column) or b""
    if b"boom" in text:
        raise ValueError("no such word: <b>boom</b>")
    for word in text.split():
        t.set("words", word, "count", b"1")
    t.notify("words", b"all", "dirty")


def measure(t: Any, cell: Any) -> None:
    t.set("docs", cell.row, "length", b"%d" % len(t.get(cell.table, cell.row, cell.column) or b""))


def total(t: Any, cell: Any) -> None:
    t.set("words", b"sum", "total", b"1")


@dataclass
class Words:
    """The chain in a namespace of its own, and a user of its pages."""

    site: Site
    url: str
    name: str
    folder: Path
    db: Database
    client: TestClient
    opened: list[Database] = field(default_factory=list)

    @property
    def chain(self) -> Chain:
        """The chain with its functions, like in a worker."""
        chain = Chain.load(self.folder, import_functions=False)
        functions = {"split": split, "measure": measure, "total": total}
        observers = {name: replace(one, function=functions[name]) for name, one in chain.observers.items()}
        return replace(chain, observers=observers, trace=True)

    def put(self, *rows: str | bytes, text: bytes = b"two words", column: str = "text") -> None:
        with self.db.transaction() as t:
            for row in rows:
                t.set("docs", row, column, text)

    def drain(self) -> None:
        Worker(self.db, self.chain).run_until_idle(PATIENCE)

    def connect(self) -> Database:
        self.opened.append(connect(self.url, self.name, lock_ttl=600))
        return self.opened[-1]

    def page(self, path: str, status: int = 200) -> str:
        """Return the HTML of a page."""
        answer = self.client.get(f"/{self.name}/{path}", headers=PAGE)
        assert answer.status_code == status, answer.text
        return str(answer.text)

    def text(self, path: str, status: int = 200) -> str:
        """Return the visible text of a page."""
        return read(self.page(path, status))

    def row(self, key: str, **query: object) -> str:
        more = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in query.items())
        return f"tables/docs/row?key={quote(key, safe='')}{more}"

    def post(self, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/{self.name}/{path}", json=body, headers=WRITE)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def follow(self, page: str, words: str) -> str:
        """Follow a link by its text, and return the page."""
        href = link(page, words)
        answer = self.client.get(href, headers=PAGE)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def calls(self) -> int:
        """Return the number of commands that the server has run, including those of scripts."""
        found = self.db.store.one((b"INFO", b"commandstats"))
        return sum(int(calls) for calls in re.findall(rb"calls=(\d+)", found))

    def sent(self) -> int:
        """Return the bytes that the server has sent."""
        [sent] = re.findall(rb"total_net_output_bytes:(\d+)", self.db.store.one((b"INFO", b"stats")))
        return int(sent)


def read(page: str) -> str:
    """Return the text of a page, without tags, with single spaces."""
    main = page.partition("<main")[2].partition("</main>")[0].partition(">")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


def link(page: str, words: str) -> str:
    """Return the target of the first link with this text."""
    for href, inner in re.findall(r'<a\b[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', page, re.DOTALL):
        if " ".join(html.unescape(re.sub(r"<[^>]*>", "", inner)).split()) == words:
            return html.unescape(href)
    raise AssertionError(f"no link says {words!r}")


def tokens(page: str) -> list[str]:
    """Return the tokens of the cells with a checkbox."""
    return [html.unescape(one) for one in re.findall(r'name="cells\[\]" value="([^"]*)"', page)]


@contextmanager
def all_pages(folder: Path) -> Iterator[tuple[Site, str]]:
    """The pages, and a store behind the default connection."""
    url = f"embedded:{folder}"
    with connect(url, "keeper"), connection_to(url), site() as made:
        try:
            yield made, url
        finally:
            forget_dags()


@contextmanager
def words_of(made: Site, url: str, folder: Path, tables: str = TABLES) -> Iterator[Words]:
    """A new chain, with its tables."""
    name = f"w{uuid4().hex[:12]}"
    chain = write_chain(folder / name, name, tables, OBSERVERS)
    with (chain / "chain.yaml").open("a", encoding="utf-8") as file:
        file.write("trace: true\n")
    give_dag(chain, name)
    with ExitStack() as stack:
        db = stack.enter_context(connect(url, name))
        client = stack.enter_context(made.as_("ADMIN"))
        found = Words(made, url, name, chain, db, client)
        Chain.load(chain, import_functions=False).create_tables(db)
        yield found
        for one in found.opened:
            one.close()
