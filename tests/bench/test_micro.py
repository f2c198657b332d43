"""The suite `micro`, tiny: what is measured and compared, and that peers repeat what was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import redis

from percolator_bench import Figure, Report, Scale, Target, micro, run
from percolator_bench.contestants import widths
from percolator_bench.peers import postgres
from percolator_bench.peers.postgres import PostgresServer, why_missing
from percolator_bench.peers.redis_py import RawRedis, WatchedRedis
from percolator_bench.peers.rows import SCANNED, VALUE, Rows
from percolator_bench.peers.sql import SqlRows, set_synchronous
from percolator_bench.servers import Place, place

TINY = Scale(operations=20, rounds=2, width=18)
needs_postgres = pytest.mark.skipif(why_missing() is not None, reason=why_missing() or "")


def by_name(report: Report, where: str) -> dict[tuple[str, float | None], Figure]:
    found = {(figure.name, figure.at): figure for figure in report.figures if figure.place == where}
    assert len(found) == len([figure for figure in report.figures if figure.place == where])
    return found


@pytest.fixture(scope="module")
def report() -> Report:
    return run(["micro"], TINY)


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place("unix") as found:
        yield found


@pytest.mark.parametrize("where", ["unix socket", "TCP loopback"])
def test_every_operation_at_every_number_in_flight(report: Report, where: str) -> None:
    found = by_name(report, where)
    for at in (1, 16, 18):
        for name in (
            *(f"{operation}: percolator" for operation in ("get", "set", "2r2w", "scan")),
            *(f"{operation}: redis-py" for operation in ("get", "set", "scan")),
            *(f"{operation}: WATCH/MULTI" for operation in ("set", "2r2w")),
        ):
            figure = found[name, at]
            assert figure.axis == "in flight"
            assert figure.unit == "/s"
            assert figure.value > 0
            assert figure.samples == TINY.rounds
    for at in (16, 18):
        for name in ("redis-py pipeline", "plain via percolator"):
            assert {found[f"{operation}: {name}", at].unit for operation in ("get", "set")} == {"/s"}
    assert found["time a scanned row: percolator", 1].unit == "µs"
    assert all(figure.low <= figure.value <= figure.high for figure in found.values())


@pytest.mark.parametrize("where", ["unix socket", "TCP loopback"])
def test_targets(report: Report, where: str) -> None:
    targets = {
        name if at is None else f"{name}, {at:.0f}": figure.target
        for (name, at), figure in by_name(report, where).items()
        if figure.target is not None and "PostgreSQL" not in name
    }
    expected = {
        "2r2w: percolator, 18": Target("at least", 20_000),
        "get ÷ redis-py, 1 in flight": Target("at least", 0.97),
        "set ÷ redis-py, 1 in flight": Target("at least", 0.5),
    }
    for at in (16, 18):
        expected[f"get ÷ plain via percolator, {at} in flight"] = Target("at least", 0.85)
        expected[f"set ÷ plain via percolator, {at} in flight"] = Target("at least", 0.4)
        expected[f"2r2w ÷ WATCH/MULTI, {at} in flight"] = Target("at least", 5)
    assert targets == expected


@needs_postgres
def test_postgres_is_measured_on_its_socket(report: Report) -> None:
    found = by_name(report, "unix socket")
    for at in (1, 16, 18):
        for name in (
            *("get: PostgreSQL", "scan: PostgreSQL"),
            *(f"{what}: PostgreSQL, sync {sync}" for what in ("set", "2r2w") for sync in ("on", "off")),
        ):
            assert found[name, at].value > 0
        for sync in ("on", "off"):
            figure = found[f"2r2w ÷ PostgreSQL, sync {sync}, {at} in flight", None]
            assert figure.target == (Target("at least", 3) if at > 1 else None)
    assert not [name for name, _ in by_name(report, "TCP loopback") if "PostgreSQL" in name]
    assert [note for note in report.notes if "fsync on" in note.text]


def test_notes_tell_the_settings_and_what_was_repeated(report: Report) -> None:
    texts = [note.text for note in report.notes]
    assert len([text for text in texts if "appendfsync everysec" in text]) == 2
    assert len([text for text in texts if "0 of WATCH/MULTI" in text]) == 2


def test_without_postgres_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "why_missing", lambda: "install it")
    monkeypatch.setattr(micro, "TRANSPORTS", ["unix"])
    report = run(["micro"], Scale(operations=5, rounds=1, width=2))
    assert "2r2w ÷ WATCH/MULTI, 2 in flight" in {figure.name for figure in report.figures}
    assert not [figure for figure in report.figures if "PostgreSQL" in figure.name]
    assert "PostgreSQL was not measured: install it" in [note.text for note in report.notes]


def test_numbers_in_flight() -> None:
    assert widths(Scale()) == (1, 16, 256)
    assert widths(Scale(width=16)) == (1, 16)
    assert widths(Scale(width=1)) == (1,)


def test_all_rows_of_a_scan_are_loaded() -> None:
    rows = Rows(SCANNED + 1)
    loaded = rows.all_loaded()
    assert loaded == sorted(loaded)
    for number in range(10):
        first = loaded.index(rows.scan_from(number))
        assert len(loaded[first : first + SCANNED]) == SCANNED
        assert set(rows.read_pair(number)) <= set(loaded)
        assert len({rows.write(number), *rows.write_pair(number)} - set(loaded)) == 2


def test_raw_operations_do_what_they_say(here: Place) -> None:
    rows = Rows(SCANNED)
    raw = RawRedis(rows)
    raw.load(here.raw)
    raw.get(here.raw, 3)
    raw.scan(here.raw, 3)
    raw.set(here.raw, 3)
    raw.set_many(here.raw, 4, 2)
    raw.get_many(here.raw, 0, 2)
    assert here.raw.mget([rows.read(3), *(rows.write(number) for number in (3, 4, 5))]) == [VALUE] * 4


class MeddledPipeline:
    """A pipeline that has someone else write a key once, between WATCH and EXEC."""

    def __init__(self, pipeline: Any, meddle: Callable[[], object]) -> None:
        self._pipeline = pipeline
        self._meddle: Callable[[], object] | None = meddle

    def multi(self) -> None:
        if self._meddle is not None:
            self._meddle()
            self._meddle = None
        self._pipeline.multi()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipeline.reset()


class MeddledRedis:
    def __init__(self, client: redis.Redis, key: bytes) -> None:
        self._client = client
        self._key = key

    def pipeline(self) -> MeddledPipeline:
        return MeddledPipeline(self._client.pipeline(), lambda: self._client.set(self._key, b"theirs"))


def test_a_watched_change_repeats_the_transaction(here: Place) -> None:
    rows = Rows(SCANNED)
    watched = WatchedRedis(rows)
    meddled: Any = MeddledRedis(here.raw, rows.write(1))
    watched.set(meddled, 1)
    assert watched.repeats == 1
    meddled = MeddledRedis(here.raw, rows.read(2))
    watched.two_and_two(meddled, 2)
    assert watched.repeats == 2
    watched.two_and_two(here.raw, 2)
    assert watched.repeats == 2
    assert here.raw.mget([rows.write(1), *rows.write_pair(2)]) == [VALUE] * 3


@needs_postgres
def test_a_refused_transaction_is_repeated() -> None:
    with PostgresServer(max_connections=5) as server:
        mine, theirs = server.connect(autocommit=True), server.connect(autocommit=True)
        with mine, theirs:

            class MeddledRows(Rows):
                """Someone else writes the row between the snapshot and the write, once."""

                def write_pair(self, number: int) -> tuple[bytes, bytes]:
                    if not meddled:
                        meddled.append(number)
                        theirs.execute("INSERT INTO bench VALUES (%s, %s)", (self.write(number), b"theirs"))
                    return super().write_pair(number)

            meddled: list[int] = []
            sql = SqlRows(MeddledRows(SCANNED))
            sql.load(mine)
            sql.warm_up([mine])
            sql.scan(mine, 1)
            for on in (True, False):
                set_synchronous([mine], on=on)
                assert mine.execute("SHOW synchronous_commit").fetchone() == ("on" if on else "off",)
            sql.two_and_two(mine, 50)
            assert (meddled, sql.repeats) == ([50], 1)
            sql.two_and_two(mine, 51)
            assert sql.repeats == 1
            row = mine.execute("SELECT c FROM bench WHERE \"row\" = 'new:50'").fetchone()
            assert row == (VALUE,)
            assert mine.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
