"""A lock of a finished transaction is in the way of one that only notifies in one of its tablets."""

from __future__ import annotations

from pathlib import Path

import pytest

import percolator_core
from tests.servers.plain import binaries, commit_of, die, rows_apart


@pytest.mark.parametrize("binary", binaries().values())
@pytest.mark.parametrize("committed", [False, True])
def test_the_lock_is_settled_and_the_commit_goes_through(
    tmp_path: Path, binary: str, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERCOLATOR_REDIS_SERVER", binary)
    url = f"embedded:{tmp_path}"
    with percolator_core.connect(url, "x") as db, percolator_core.connect(url, "x") as dying:
        for each in (db, dying):
            each.client.one_call_a_tablet = True
        db.create_table("a", 16, ("added",))
        first, second = rows_apart(2)
        t = dying.begin()
        t.set("a", second, "z", b"1")
        t.set("a", first, "x", b"1")
        assert t.start_timestamp
        commit = commit_of(t)
        timestamp = commit.prewrite()
        if committed:
            commit.commit_primary(timestamp)
        die(dying)
        t = db.begin()
        assert t.start_timestamp
        t.set("a", first, "x", b"2")
        t.notify("a", second, "added")
        t.commit()
