"""Arguments that cannot be: refused in one sentence, before anything is asked of the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from percolator_core import Database

REFUSED: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "history, limit 0": (lambda db: db.history("t", "r", "c", 0), ValueError, "limit is 1 or more, not 0"),
    "history, no int": (lambda db: db.history("t", "r", "c", "5"), TypeError, "limit is int, not str"),
    "scan, limit -1": (
        lambda db: db.snapshot().scan("t", limit=-1),
        ValueError,
        "limit is 0 or more, not -1",
    ),
    "scan, no int": (lambda db: db.snapshot().scan("t", limit=1.5), TypeError, "limit is int, not float"),
    "tablets, no int": (lambda db: db.create_table("n", tablets="3"), TypeError, "tablets is int, not str"),
    "table, no str": (lambda db: db.create_table(b"n"), TypeError, "a table name is str, not bytes"),
    "notify_only, one name": (
        lambda db: db.create_table("n", notify_only="ping"),
        TypeError,
        "write ['ping']",
    ),
    "resolve_locks, no timedelta": (
        lambda db: db.resolve_locks(30),
        TypeError,
        "older_than is a timedelta, not int: write timedelta(seconds=30)",
    ),
    "resolve_locks, negative": (
        lambda db: db.resolve_locks(timedelta(-1)),
        ValueError,
        "older_than is zero or more",
    ),
    "collect_garbage, no timedelta": (
        lambda db: db.collect_garbage(30),
        TypeError,
        "keep is a timedelta, not int",
    ),
    "collect_garbage, negative": (
        lambda db: db.collect_garbage(timedelta(-1)),
        ValueError,
        "keep is zero or more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(db: Database, name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        call(db)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scan_with_own_writes_refuses_alike(db: Database) -> None:
    with db.transaction() as t:
        t.set("t", "a", "v", b"1")
        with pytest.raises(ValueError, match="limit is 0 or more, not -1"):
            t.scan("t", limit=-1)
        assert list(t.scan("t", limit=0)) == []
        assert list(t.scan("t", limit=1)) == [(b"a", {"v": b"1"})]


def test_a_history_is_cut(db: Database) -> None:
    for value in (b"1", b"2", b"3"):
        with db.transaction() as t:
            t.set("t", "a", "v", value)
    assert [version.value for version in db.history("t", "a", "v", 1)] == [b"3"]
    assert [version.value for version in db.history("t", "a", "v", 2)] == [b"3", b"2"]
