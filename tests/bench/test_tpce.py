"""The brokerage: both stores do the same work and end with the same cash and shares, and a cheat is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

import pytest

from percolator_bench import Report, Scale, run
from percolator_bench.figure import Target
from percolator_bench.peers.postgres import PostgresServer, why_missing
from percolator_bench.servers import Place, place
from percolator_bench.tpce import percolator, postgres, suite
from percolator_bench.tpce.fleet import fleet
from percolator_bench.tpce.orders import Share, Task
from percolator_bench.tpce.percolator import PercolatorClient
from percolator_bench.tpce.postgres import PostgresClient
from percolator_bench.tpce.state import State, WrongResult, check, expected
from percolator_bench.tpce.worker import percolator_runner, postgres_runner
from percolator_bench.tpce.workload import (
    TICKERS,
    Brokerage,
    CustomerPosition,
    Item,
    MarketFeed,
    MarketWatch,
    Trade,
    TradeStatus,
    transactions_of,
)
from percolator_core.errors import StoreUnavailable

needs_postgres = pytest.mark.skipif(why_missing() is not None, reason=f"NOT TESTED: {why_missing()}")

BROKERAGE = Brokerage(customers=3)
SEED = "test"
TINY = Scale(customers=2, operations=6, rounds=2)


def stream(count: int, brokerage: Brokerage = BROKERAGE, seed: str = SEED) -> list[Item]:
    return list(islice(brokerage.items(seed, brokerage.first_trade), count))


@pytest.fixture(scope="module")
def one_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def server(one_server: PostgresServer) -> PostgresServer:
    """An empty one."""
    with one_server.connect() as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return one_server


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


# The stream.


def test_workers_share_a_stream_and_one_seed_gives_one_stream() -> None:
    whole = stream(100)
    for workers in (1, 2, 4):
        shares = [
            Share(SEED, BROKERAGE.first_trade, 100, worker, workers).items(BROKERAGE)
            for worker in range(workers)
        ]
        together = [shares[number % workers][number // workers] for number in range(100)]
        assert together == whole
    assert stream(100, seed="another") != whole


def test_the_mix_has_the_shares_that_are_told() -> None:
    items = stream(20_000)
    transactions = sum(map(transactions_of, items))
    for kind, wanted in (
        (Trade, 20),
        (MarketWatch, 18),
        (CustomerPosition, 13),
        (TradeStatus, 19),
        (MarketFeed, 1),
    ):
        found = sum(transactions_of(item) for item in items if isinstance(item, kind))
        assert found / transactions == pytest.approx(wanted / 71, rel=0.2)
    trades = [item.trade for item in items if isinstance(item, Trade)]
    assert len(trades) == len(set(trades))
    assert min(trades) >= BROKERAGE.first_trade
    feeds = [item for item in items if isinstance(item, MarketFeed)]
    assert all(len(feed.tickers) == TICKERS for feed in feeds)
    assert all(list(feed.tickers) == sorted(feed.tickers) for feed in feeds)


# What must be true at the end.


def test_a_state_that_is_right_passes() -> None:
    items = stream(300)
    check("here", expected(BROKERAGE, items), expected(BROKERAGE, items))


def _lose_execution(state: State) -> None:
    state.executed.popitem()


def _invent_execution(state: State) -> None:
    state.executed[10**9] = 0


def _leave_pending(state: State) -> None:
    state.pending.add(1)


def _lose_cent(state: State) -> None:
    state.cash[0] -= 1


def _double_share(state: State) -> None:
    state.holdings[min(state.holdings)] += 1


def _lose_volume(state: State) -> None:
    state.volumes[0] -= 1


def _lose_payment(state: State) -> None:
    state.executed[min(state.executed)] = None


@pytest.mark.parametrize(
    "cheat",
    [
        _lose_execution,
        _invent_execution,
        _leave_pending,
        _lose_cent,
        _double_share,
        _lose_volume,
        _lose_payment,
    ],
)
def test_wrong_work_is_an_error(cheat: Callable[[State], None]) -> None:
    items = stream(300)
    found = expected(BROKERAGE, items)
    cheat(found)
    with pytest.raises(WrongResult, match=r"here: .*do not count"):
        check("here", found, expected(BROKERAGE, items))


# The two stores.


@needs_postgres
def test_both_stores_find_out_the_same_and_end_alike(here: Place, server: PostgresServer) -> None:
    items = stream(150)
    percolator.load(here.db, BROKERAGE)
    with server.connect() as connection:
        postgres.load(connection, BROKERAGE)
    with server.connect(autocommit=True) as connection:
        ours, theirs = PercolatorClient(here.db), PostgresClient(connection)
        for item in items:
            assert ours.do(item) == theirs.do(item), item
        assert ours.attempts == theirs.attempts == sum(map(transactions_of, items))
    with server.connect() as connection:
        check("PostgreSQL", postgres.read_state(connection, BROKERAGE), expected(BROKERAGE, items))
    check("this library", percolator.read_state(here.db, BROKERAGE), expected(BROKERAGE, items))


def test_all_on_the_same_accounts_loses_nothing(here: Place) -> None:
    brokerage = Brokerage(customers=1)
    # All at once on five accounts, among them feeds that share securities: many are run again.
    items = [item for item in stream(600, brokerage) if isinstance(item, Trade | MarketFeed)]
    percolator.load(here.db, brokerage)
    with ExitStack() as stack:
        work = percolator_runner(stack, Task("percolator", here.url, 32, 1))
        attempts = work(items)
    assert attempts > sum(map(transactions_of, items))
    check("this library", percolator.read_state(here.db, brokerage), expected(brokerage, items))


@needs_postgres
def test_all_on_the_same_accounts_loses_nothing_in_postgres(server: PostgresServer) -> None:
    brokerage = Brokerage(customers=1)
    items = [item for item in stream(600, brokerage) if isinstance(item, Trade | MarketFeed)]
    with server.connect() as connection:
        postgres.load(connection, brokerage)
    with ExitStack() as stack:
        work = postgres_runner(stack, Task("postgres", server.conninfo, 8, 1))
        assert work(items) >= sum(map(transactions_of, items))
    with server.connect() as connection:
        check("PostgreSQL", postgres.read_state(connection, brokerage), expected(brokerage, items))


@needs_postgres
def test_a_failure_of_one_connection_is_told(server: PostgresServer) -> None:
    brokerage = Brokerage(customers=1)
    with server.connect() as connection:
        postgres.load(connection, brokerage)
        connection.execute("DROP TABLE payment")
    with ExitStack() as stack:
        work = postgres_runner(stack, Task("postgres", server.conninfo, 2, 1))
        with pytest.raises(Exception, match="payment"):
            work(stream(50, brokerage))


# The processes.


def test_a_worker_that_fails_is_told(here: Place, capfd: pytest.CaptureFixture[str]) -> None:
    brokerage = Brokerage(customers=1)
    percolator.create_tables(here.db)  # and no data
    with (
        pytest.raises(StoreUnavailable, match="its error is printed above"),
        fleet(Task("percolator", here.url, 4, 1), 2, lambda: 0.0) as workers,
    ):
        workers.run(2, SEED, brokerage.first_trade, 20)
    assert "Traceback" in capfd.readouterr().err


def _by_place(report: Report) -> dict[tuple[str, str, float | None], float]:
    found = {(figure.place, figure.name, figure.at): figure.value for figure in report.figures}
    assert len(found) == len(report.figures)
    assert {figure.suite for figure in report.figures} == {"tpce"}
    assert {figure.axis for figure in report.figures if figure.at is not None} == {"workers"}
    return found


@needs_postgres
@pytest.mark.slow
def test_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "WORKERS", (1, 2))
    report = run(["tpce"], TINY)
    found = _by_place(report)
    for workers in (1, 2):
        for who in (suite.OURS, suite.PEER, suite.RELAXED):
            assert found[who, "transactions", workers] > 0
            # The parts are medians of their own, so that their sum need not be the median of the whole.
            for name in ("CPU a transaction", "of it, clients"):
                assert found[who, name, workers] > 0
            assert found[who, "of it, server", workers] >= 0
            assert 0 <= found[who, "attempts run again", workers] < 1
        for peer in (suite.PEER, suite.RELAXED):
            assert found[f"{suite.OURS} ÷ {peer}", "CPU a transaction", workers] > 0
            assert found[f"{suite.OURS} ÷ {peer}", "transactions", workers] > 0
    targets = {figure.place: figure.target for figure in report.figures if figure.target}
    peers = (suite.PEER, suite.RELAXED)
    assert targets == {f"{suite.OURS} ÷ {peer}": Target("at most", 1) for peer in peers}
    assert all(figure.samples == TINY.rounds for figure in report.figures if figure.at is not None)


def test_the_suite_without_postgres_measures_ours_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "WORKERS", (1,))
    monkeypatch.setattr(suite, "why_missing", lambda: "there is no server: install one")
    report = run(["tpce"], replace(TINY, rounds=1))
    assert {place for place, _, _ in _by_place(report)} == {suite.OURS}
    [note] = report.notes
    assert "there is no server" in note.text
