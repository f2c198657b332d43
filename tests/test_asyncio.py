"""A database in a running event loop, and `Database.to_thread`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import percolator_core
from percolator_core import Database, Transaction, Worker, connect
from percolator_core.background import WIDTH
from percolator_core.errors import PercolatorError
from tests.chains import chain_of, put, watch
from tests.servers.plain import PATIENCE
from tests.site.pages import blocks

REQUESTS = 500


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path}/store"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with connect(url, timeout=PATIENCE, patience=PATIENCE) as database:
        database.create_table("t")
        yield database


@contextmanager
def stopped_server(db: Database) -> Iterator[None]:
    """A server that does not answer until the block ends."""
    pid = int(db.store.server_info().raw["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def add(row: str, t: Transaction) -> int:
    count = int(t.get("t", row, "n") or b"0") + 1
    t.set("t", row, "n", str(count).encode())
    return count


async def passes(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


def test_all_calls_work_inside_a_running_loop(db: Database) -> None:
    chain = chain_of(
        watch("o", lambda t, cell: t.set("sums", "a", "n", b"1"), "docs.text", writes=("sums.n",))
    )

    async def program() -> None:
        assert db.run(partial(add, "a")) == 1
        assert [row for row, _ in db.snapshot().scan("t")] == [b"a"]
        with db.concurrency() as executor:
            assert sum(executor.map(lambda row: db.run(partial(add, row)), map(str, range(100)))) == 100
            # Another coroutine may open an executor in the meantime.
            await asyncio.create_task(other())
            assert executor.submit(db.timestamp).result() > 0
        chain.create_tables(db)
        put(db, "a", b"x")
        assert Worker(db, chain).run_until_idle(PATIENCE).ran == 1

    async def other() -> None:
        with db.concurrency() as executor:
            assert executor.submit(db.run, partial(add, "a")).result() == 2

    asyncio.run(program())


def test_the_loop_goes_on_while_the_store_does_not_answer(db: Database) -> None:
    async def program() -> None:
        with stopped_server(db):
            calls = [
                asyncio.ensure_future(db.to_thread(db.run, partial(add, str(n)))) for n in range(REQUESTS)
            ]
            await passes(lambda: len(db._background._pending) == REQUESTS)
            assert not any(call.done() for call in calls)
        assert await asyncio.gather(*calls) == [1] * REQUESTS

    asyncio.run(program())


def test_functions_share_one_thread_and_its_connection(db: Database) -> None:
    async def program() -> int:
        await asyncio.gather(*(db.to_thread(db.run, partial(add, str(n))) for n in range(REQUESTS)))
        return clients()

    def clients() -> int:
        return int(db.store.server_info().raw["connected_clients"])

    before = clients()
    assert asyncio.run(program()) <= before + 2


def test_results_errors_arguments_and_context(db: Database) -> None:
    variable: ContextVar[int] = ContextVar("variable")

    def both(first: int, *, second: int) -> tuple[int, int]:
        db.timestamp()  # another function runs in between
        return first + variable.get(), second

    async def one(number: int) -> tuple[int, int]:
        variable.set(number * 100)
        return await db.to_thread(both, number, second=-number)

    async def program() -> None:
        assert await asyncio.gather(*map(one, range(9))) == [(number * 101, -number) for number in range(9)]
        with pytest.raises(ZeroDivisionError):
            await db.to_thread(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="give next"):
            await db.to_thread(next, iter(()))

    asyncio.run(program())


def test_a_cancelled_call_that_has_not_begun_never_runs(db: Database) -> None:
    begun: list[int] = []

    async def program() -> None:
        with stopped_server(db):
            first = [asyncio.ensure_future(db.to_thread(db.timestamp)) for _ in range(WIDTH)]
            late = asyncio.ensure_future(db.to_thread(begun.append, 1))
            await passes(lambda: len(db._background._pending) == WIDTH + 1)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
        await asyncio.gather(*first)
        await db.to_thread(db.timestamp)

    asyncio.run(program())
    assert begun == []


def test_the_end_of_the_database_ends_its_functions(url: str) -> None:
    async def program() -> None:
        with connect(url) as db:
            call = asyncio.ensure_future(db.to_thread(db.store.sleep, 10_000))
            await passes(lambda: db._background._hub is not None and db._background._hub.active)
        with pytest.raises(PercolatorError, match="closed before the function ended"):
            await call
        with pytest.raises(PercolatorError, match="connect again"):
            await db.to_thread(db.timestamp)

    asyncio.run(program())


def test_a_thread_that_cannot_begin_is_an_error_of_each_call(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(width: int) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(db.store, "hub", broken)
    for _ in range(2):
        with pytest.raises(OSError, match="no more files"):
            asyncio.run(asyncio.wait_for(db.to_thread(db.timestamp), PATIENCE))
    monkeypatch.undo()
    assert asyncio.run(db.to_thread(db.timestamp)) > 0


FORKS = """\
import asyncio, os, sys
import percolator_core as percolator

with percolator.connect(sys.argv[1]) as db:
    print(asyncio.run(db.to_thread(db.timestamp)) > 0, flush=True)
    pid = os.fork()
    print(asyncio.run(db.to_thread(db.timestamp)) > 0, flush=True)
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_child_has_a_thread_of_its_own(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, url], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["True"] * 3, "")


class Counting:
    """The application, with the number of requests that are under way."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.now = 0

    async def __call__(self, *arguments: Any) -> None:
        self.now += 1
        try:
            await self._app(*arguments)
        finally:
            self.now -= 1


def test_the_application_of_the_page_holds_500_requests_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store does not answer, all requests are under way, and the loop answers another one."""
    [page] = [block for block in blocks("how-to/asyncio.md") if block.file == "app.py"]
    (tmp_path / "app.py").write_text(page.text)
    spec = importlib.util.spec_from_file_location("page_app", tmp_path / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "page_app", module)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    patient = partial(percolator_core.connect, timeout=PATIENCE, patience=PATIENCE)
    monkeypatch.setattr(module.percolator, "connect", patient)
    app, counting = module.app, Counting(module.app)

    async def program() -> None:
        transport = httpx.ASGITransport(counting)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=None) as client,
        ):
            with stopped_server(app.state.db):
                orders = [{"number": number, "customer": "ada"} for number in range(REQUESTS)]
                posts = [asyncio.ensure_future(client.post("/orders", json=order)) for order in orders]
                await passes(lambda: counting.now == REQUESTS)
                assert (await client.get("/openapi.json")).status_code == 200
                assert not any(post.done() for post in posts)
            assert {answer.status_code for answer in await asyncio.gather(*posts)} == {201}
            assert (await client.get("/orders/499")).json() == {"number": 499, "customer": "ada"}
            assert (await client.get("/orders/500")).status_code == 404
            assert (await client.post("/orders", json=orders[0])).status_code == 409

    asyncio.run(program())
