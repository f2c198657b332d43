"""The pages of `percolator ui` in this process: a chain, its store, and a client with the token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core as percolator
from percolator_core import Chain, Database
from tests.airflow.pages import OBSERVERS, split_and_join, write_chain
from tests.servers.plain import Server, binaries

if TYPE_CHECKING:
    from starlette.testclient import TestClient

HERE = Path(__file__).parent
_CLIENT = pytest.mark.filterwarnings("ignore:Using .httpx. with .starlette.testclient")
"""The test client warns of the package that it is made with."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(_CLIENT)


TOKEN = "a-token-of-the-tests"
PORT = 4711
TABLES = "{docs: {tablets: 2}, out: {tablets: 2}}"


@dataclass
class Pages:
    """A chain with a namespace of its own, and a client of its pages."""

    name: str
    folder: Path
    url: str
    db: Database
    client: TestClient

    @property
    def chain(self) -> Chain:
        return Chain.load(self.folder, import_functions=False)

    def get(self, path: str, status: int = 200, **headers: str) -> str:
        answer = self.client.get(f"/{self.name}/{path}", headers={"Accept": "text/html"} | headers)
        assert answer.status_code == status, answer.text
        return str(answer.text)

    def post(self, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/{self.name}/{path}", json=body, headers={"X-Percolator": "1"})
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def write(self, *rows: str) -> None:
        with self.db.transaction() as t:
            for row in rows:
                t.set("docs", row, "text", b"x")

    def work(self, errors: Mapping[str, Exception] | None = None) -> None:
        """Run the observers until the chain is idle; rows in ``errors`` fail."""
        split_and_join(self.db, self.chain, errors or {})


_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server(next(iter(binaries().values())))) as server:
        yield server


@pytest.fixture
def pages(server: Server, tmp_path: Path) -> Iterator[Pages]:
    """A new chain with its tables."""
    from starlette.testclient import TestClient

    from percolator_core.store.url import StoreUrl
    from percolator_core.ui.local import LocalChain, make_local_app
    from percolator_core.ui.stores import stores

    name = f"ui{next(_numbers)}"
    folder = write_chain(tmp_path / name, name, TABLES, OBSERVERS)
    app = make_local_app([LocalChain(name, folder, StoreUrl(server.unix), name)], TOKEN, PORT)
    with percolator.connect(server.unix, name) as db:
        Chain.load(folder, import_functions=False).create_tables(db)
        client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield Pages(name, folder, server.unix, db, client)
    stores.close()
