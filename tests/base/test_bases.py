"""The bases of a client: files are read in threads of their own, and each row group once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from percolator_core import ConfigurationError, Database, Hash, PrimaryKey, Table, connect
from percolator_core.base.location import Location
from percolator_core.errors import BaseDamaged
from percolator_core.store.file_threads import file_threads
from percolator_core.store.hub import current_hub
from percolator_core.worker.watchdog import Deadline, ObserverTimeout
from tests.servers.plain import PATIENCE

ROWS = 600


class Doc(Table, name="docs", partition=[Hash("id", buckets=1)]):
    id: PrimaryKey[int]
    text: str
    at: int
    size: int | None = None


@pytest.fixture
def cold(db: Database, tmp_path: Path) -> Database:
    """A raw table of one tablet, whose rows are all in the base."""
    db.create_table("cold", tablets=1)
    with db.transaction() as t:
        for number in range(ROWS):
            t.set("cold", f"r{number:04}", "v", b"%d" % number)
    db.set_base("cold", str(tmp_path))
    db.flush("cold", everything=True)
    return db


@pytest.fixture
def docs(db: Database, tmp_path: Path) -> Database:
    """A typed table of one tablet, whose rows are all in the base."""
    db.create_table(Doc)
    with db.transaction() as t:
        for number in range(ROWS):
            t.insert(Doc(id=number, text=f"text {number}", at=number, size=None if number % 2 else number))
    db.set_base(Doc, str(tmp_path))
    db.flush(Doc, everything=True)
    return db


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """The parts of files that were read, and how often; no part is read in the thread of the hub."""
    found: Counter[tuple[str, int]] = Counter()
    read, read_whole, here = Location.read_at, Location.read, threading.get_ident()

    def counted(self: Location, name: str, start: int, size: int) -> bytes:
        assert threading.get_ident() != here, "a file is read in the thread of the hub"
        found[name, start] += 1
        return read(self, name, start, size)

    def whole(self: Location, name: str) -> bytes:
        assert threading.get_ident() != here, "a file is read in the thread of the hub"
        return read_whole(self, name)

    monkeypatch.setattr(Location, "read_at", counted)
    monkeypatch.setattr(Location, "read", whole)
    return found


def test_256_tasks_that_want_one_row_group_cause_one_read(
    cold: Database, reads: Counter[tuple[str, int]]
) -> None:
    def get(number: int) -> bytes | None:
        return cold.snapshot().get("cold", f"r{number:04}", "v")

    with cold.concurrency(256) as executor:
        assert list(executor.map(get, range(ROWS))) == [b"%d" % number for number in range(ROWS)]
    assert reads
    assert set(reads.values()) == {1}


def test_a_find_reads_the_columns_of_a_row_group_at_once(
    docs: Database, reads: Counter[tuple[str, int]]
) -> None:
    def find(number: int) -> Doc | None:
        return docs.snapshot().find(Doc, id=number)

    with docs.concurrency(256) as executor:
        for number, found in enumerate(executor.map(find, range(ROWS))):
            size = None if number % 2 else number
            assert found == Doc(id=number, text=f"text {number}", at=number, size=size)
    assert list(reads.values()) == [1, 1, 1], "the tail, the keys, and the other columns"


def test_what_is_in_memory_is_read_in_the_thread_of_the_hub(
    cold: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(number: int) -> None:
        row, value = f"r{number:04}", b"%d" % number
        snapshot = cold.snapshot()
        assert snapshot.get("cold", row, "v") == value
        assert snapshot.get_row("cold", row) == {"v": value}
        [version] = snapshot.versions("cold", row.encode(), [b"v"])
        assert version is not None
        assert version.value == value

    def refuse(*_: object) -> None:
        raise AssertionError("a task leaves the thread of the hub")

    with cold.concurrency(4) as executor:
        executor.submit(read, 0).result()
        monkeypatch.setattr(file_threads, "_pool", SimpleNamespace(submit=refuse))
        assert len(list(executor.map(read, range(ROWS)))) == ROWS


def test_scans_of_tasks_read_in_other_threads(cold: Database, reads: Counter[tuple[str, int]]) -> None:
    def scan(_: int) -> int:
        return len(list(cold.snapshot().scan("cold")))

    with cold.concurrency(8) as executor:
        assert list(executor.map(scan, range(8))) == [ROWS] * 8
    assert reads


def test_the_manifest_that_another_client_has_published_is_read_in_another_thread(
    cold: Database, reads: Counter[tuple[str, int]]
) -> None:
    bases = cold.client.bases
    bases._open.clear()
    bases.cache.forget(lambda _: False)
    with cold.concurrency(2) as executor:
        assert executor.submit(lambda: cold.snapshot().get("cold", "r0001", "v")).result() == b"1"
    assert reads


def test_a_task_whose_time_is_over_waits_for_no_file(cold: Database) -> None:
    """A scan of a base may ask the store for nothing for long; it still ends at a run's timeout."""

    def scan() -> int:
        rows = cold.snapshot().scan("cold")
        next(rows)
        hub = current_hub()
        assert hub is not None
        assert hub.running is not None
        hub.running.deadline = Deadline(-1.0)
        return len(list(rows))

    with cold.concurrency(2) as executor, pytest.raises(ObserverTimeout):
        executor.submit(scan).result()


def test_versions_of_cold_cells_have_their_commit_times(cold: Database) -> None:
    """A run of an observer begins with this read."""
    [version, missing] = cold.snapshot().versions("cold", b"r0007", [b"v", b"w"])
    [again] = cold.history("cold", "r0007", "v")
    assert version == again
    assert version is not None
    assert (version.value, missing) == (b"7", None)
    assert 0 < version.commit_ts < cold.timestamp()


def test_an_error_of_a_file_reaches_the_task(
    cold: Database, tmp_path: Path, reads: Counter[tuple[str, int]]
) -> None:
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()

    def get(number: int) -> bytes | None:
        return cold.snapshot().get("cold", f"r{number:04}", "v")

    with cold.concurrency(4) as executor, pytest.raises(BaseDamaged, match="is missing"):
        list(executor.map(get, range(4)))
    assert reads


def test_an_executor_that_is_closed_while_a_file_is_read_ends(
    cold: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    read = Location.read_at

    def slow(self: Location, name: str, start: int, size: int) -> bytes:
        begun.set()
        assert may_go_on.wait(PATIENCE)
        return read(self, name, start, size)

    monkeypatch.setattr(Location, "read_at", slow)

    def fail() -> None:
        raise LookupError

    def use() -> None:
        with cold.concurrency(2) as executor:
            executor.submit(lambda: cold.snapshot().get("cold", "r0001", "v"))
            while not begun.is_set():
                executor.submit(cold.timestamp).result()
            executor.submit(fail).result()

    with pytest.raises(LookupError):
        use()
    may_go_on.set()
    assert cold.snapshot().get("cold", "r0001", "v") == b"1"


def test_the_size_of_the_cache_is_a_setting(cold: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCOLATOR_BASE_CACHE", "3KB")
    with connect(cold.url, cold.namespace) as db:
        assert db.snapshot().get("cold", "r0005", "v") == b"5"
        assert 0 < db.client.bases.cache.size <= 3000
    monkeypatch.setenv("PERCOLATOR_BASE_CACHE", "much")
    with pytest.raises(ConfigurationError, match="PERCOLATOR_BASE_CACHE: 'much' is not a size"):
        connect(cold.url, cold.namespace)
