"""``locks``, ``resolve``, ``gc``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from percolator_core.admin.locks import locks
from percolator_core.layout.keys import CellAddress, encode_primary
from percolator_core.notation.times import parse_length
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Role

if TYPE_CHECKING:
    from tests.cli.conftest import Project


@pytest.fixture
def abandoned(project: Project) -> Project:
    """A store in which a client died after it had prewritten two cells."""
    with project.connect() as db:
        db.create_table("docs", tablets=2)
        start = db.timestamp()
        primary = encode_primary(CellAddress(db.catalog.table("docs").tag(b"a"), b"a", b"text"))
        version = db.catalog.table("docs").version
        prewritten: list[tuple[bytes, Role]] = [(b"a", "primary"), (b"\xff", "secondaries")]
        for row, role in prewritten:
            tag = db.catalog.table("docs").tag(row)
            cell = (b"1", row, b"text", b"0", b"never committed")
            lock = (1000, b"nobody", primary)
            db.store.run(calls.prewrite([tag], (), role, start, cell, lock, version))
    return project


def test_locks_of_a_dead_client(abandoned: Project) -> None:
    listed = abandoned.ok("locks", "--json").json["locks"]
    assert {(one["is_primary"], one["owner"], one["owner_alive"]) for one in listed} == {
        (True, "nobody", False),
        (False, "nobody", False),
    }
    assert [one["row"] for one in listed if not one["is_primary"]] == [{"base64": "/w=="}]
    ended = abandoned.ok("locks")
    assert ended.out.count("nobody (dead)") == 2
    assert "hex:ff" in ended.out
    assert "percolator resolve" in ended.err
    assert abandoned.ok("status", "--json").json["locks"] == 2


def test_the_oldest_locks_of_all_tablets_come_first(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=4)
        rows = [b"row%d" % number for number in range(20)]
        for row in rows:
            primary = encode_primary(CellAddress(db.catalog.table("docs").tag(row), row, b"text"))
            tag, version = db.catalog.table("docs").tag(row), db.catalog.table("docs").version
            cell = (b"1", row, b"text", b"0", b"never committed")
            lock = (60_000, b"nobody", primary)
            db.store.run(calls.prewrite([tag], (), "primary", db.timestamp(), cell, lock, version))
        for limit in (1, 7, 20, 100):
            assert [lock.row for lock in locks(db, limit)] == rows[:limit]
        with pytest.raises(ValueError, match="limit is 1 or more, not 0"):
            locks(db, 0)


def test_resolve(abandoned: Project) -> None:
    assert abandoned.ok("resolve", "--json").json == {"committed": 0, "rolled_back": 0, "live": 0}
    done = abandoned.ok("resolve", "--older-than", "0", "--json").json
    assert done["rolled_back"] >= 1  # the primary may go along with the other
    assert abandoned.ok("locks").out == "no locks\n"


def test_gc(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=2)
        for value in (b"1", b"2", b"3"):
            with db.transaction() as t:
                t.set("docs", "a", "text", value)
    kept = project.ok("gc", "--json").json
    assert kept["versions"] == 0
    assert project.ok("gc", "--keep", "0s", "--json").json["versions"] == 2
    assert project.ok("get", "docs", "a", "text").out == "3\n"
    assert "safe point" in project.ok("gc").out
    old = project("get", "docs", "a", "--at", str(kept["safe_point"]))
    assert old.code == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("15 min", 900),
        ("1.5h", 5400),
        ("7d", 604800),
        ("50ms", 0.05),
        ("0s", 0),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("command", [["gc", "--keep", "5"], ["drain", "chain", "--budget", "5"]])
def test_a_length_of_time_has_a_unit(project: Project, command: list[str]) -> None:
    project.put()
    ended = project(*command)
    assert ended.code == 2
    assert ended.error == "Invalid value: '5' has no unit: write 5s, 5m, 5h or 5d"
