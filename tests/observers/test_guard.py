"""An observer may write what it declared, and what nobody observes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.observers import ObserverTransaction, guards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from percolator_core.transaction.transaction import Transaction
    from tests.observers.conftest import Project


class Recorder:
    """Takes down what reaches the transaction."""

    start_timestamp = 7
    commit_timestamp = None

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        return b"value"

    def get_row(self, table: str, row: str | bytes, columns: None = None) -> dict[str, bytes]:
        return {}

    def get_many(self, cells: list[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        return []

    def scan(self, table: str) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        return iter(())

    def find(self, table: str, **key: object) -> dict[str, object]:
        return {}

    def select(self, table: str) -> Iterator[dict[str, object]]:
        return iter(())

    def to_arrow(self, table: str) -> None:
        return None

    def set(self, table: str, row: str | bytes, column: str, value: bytes) -> None:
        self.calls.append(("set", table, row, column, value))

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        self.calls.append(("delete", table, row, column))

    def delete_row(self, table: str, row: str | bytes) -> None:
        self.calls.append(("delete_row", table, row))

    def notify(self, table: str, row: str | bytes, column: str) -> None:
        self.calls.append(("notify", table, row, column))

    def insert(self, row: object, /, **values: object) -> None:
        self.calls.append(("insert", row, values))

    def upsert(self, row: object, /, **values: object) -> None:
        self.calls.append(("upsert", row, values))

    def update(self, row: object, /, **values: object) -> None:
        self.calls.append(("update", row, values))

    def remove(self, table: object, /, **key: object) -> bool:
        self.calls.append(("remove", table, key))
        return True


@pytest.fixture
def under(project: Project) -> tuple[Recorder, ObserverTransaction]:
    project.observer("parse", "observe: documents.contents\nwrites: [documents.fingerprint]")
    project.observer("cluster", "observe: documents.fingerprint")
    project.observer("elect", "observe: clusters.dirty\nmode: weak\nwrites: [links.*]")
    project.observer("invert", "observe: links.out")
    chain = project.load()
    recorder = Recorder()
    return recorder, ObserverTransaction(cast("Transaction", recorder), guards(chain)["parse"])


def test_declared_and_unobserved_writes_pass(under: tuple[Recorder, ObserverTransaction]) -> None:
    recorder, t = under
    t.set("documents", "r", "fingerprint", b"1")
    t.delete("documents", b"r", "title")
    t.delete_row("clusters", "r")
    t.notify("elsewhere", "r", "c")
    assert [call[0] for call in recorder.calls] == ["set", "delete", "delete_row", "notify"]


def test_undeclared_writes_to_observed_columns_are_refused(
    under: tuple[Recorder, ObserverTransaction],
) -> None:
    recorder, t = under
    attempts: dict[str, Callable[[], None]] = {
        "documents.contents": lambda: t.set("documents", "r", "contents", b"1"),
        "links.out": lambda: t.delete("links", "r", "out"),
        "links.*": lambda: t.delete_row("links", "r"),
        "clusters.dirty": lambda: t.notify("clusters", "r", "dirty"),
    }
    for mend, attempt in attempts.items():
        with pytest.raises(ConfigurationError) as raised:
            attempt()
        assert str(raised.value).endswith(f"add '{mend}' to writes in observers/web/parse.yaml")
    assert not recorder.calls


def test_the_refusal_says_who_observes_what(under: tuple[Recorder, ObserverTransaction]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        under[1].set("links", "r", "out", b"1")
    assert str(raised.value) == (
        "observer parse wrote links.out without declaring it, and invert observes it: "
        "add 'links.out' to writes in observers/web/parse.yaml"
    )


def test_all_columns_of_a_table_may_be_declared_at_once(project: Project) -> None:
    project.observer("elect", "observe: clusters.dirty\nmode: weak\nwrites: [links.*]")
    project.observer("invert", "observe: links.out")
    chain = project.load()
    recorder = Recorder()
    t = ObserverTransaction(cast("Transaction", recorder), guards(chain)["elect"])
    t.set("links", "r", "out", b"1")
    t.delete_row("links", "r")
    assert len(recorder.calls) == 2


def test_a_notification_is_declared_by_name(project: Project) -> None:
    project.observer("parse", "observe: documents.contents\nwrites: [clusters.*]")
    project.observer("elect", "observe: clusters.dirty\nmode: weak")
    recorder = Recorder()
    t = ObserverTransaction(cast("Transaction", recorder), guards(project.load())["parse"])
    t.set("clusters", "r", "size", b"1")
    with pytest.raises(ConfigurationError, match=r"add 'clusters\.dirty' to writes"):
        t.notify("clusters", "r", "dirty")
    assert len(recorder.calls) == 1


def test_reads_are_the_transactions_own(under: tuple[Recorder, ObserverTransaction]) -> None:
    recorder, t = under
    for name in ("get", "get_row", "get_many", "scan", "find", "select", "to_arrow"):
        assert getattr(t, name) == getattr(recorder, name)
    assert (t.start_timestamp, t.commit_timestamp) == (7, None)


def test_the_worker_commits_not_the_observer(under: tuple[Recorder, ObserverTransaction]) -> None:
    t = under[1]
    with pytest.raises(ConfigurationError, match=r"called commit\(\): return to commit, raise to discard"):
        t.commit()
    with pytest.raises(ConfigurationError, match=r"called rollback\(\)"):
        t.rollback()
