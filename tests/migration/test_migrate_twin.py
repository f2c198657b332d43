"""Random sequences of models against a twin, with clients that go on; and a crash at each step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percolator_core import Database, Indexed, RenamedFrom, Table
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.maintenance.locks import Locks
from percolator_core.migration.difference import Difference
from percolator_core.tables.verify import check_indexes
from tests.migration.models import ROWS, clients, increment, model, rows
from tests.servers.fixtures import BINARIES, connecting
from tests.servers.plain import Server

Connect = Callable[..., Database]


@dataclass(frozen=True)
class Field:
    """A declared column of the twin; ``before`` is its name in the previous model."""

    kind: type
    nullable: bool = False
    indexed: bool = False
    before: str = ""


Fields = dict[str, Field]

INDEXED: Any = Indexed
"""Type checkers refuse `Indexed` with a type that they do not know."""

DEFAULTS: dict[type, Any] = {int: 4, str: "4", float: 4.0, bytes: b"4"}


def declared(fields: Fields) -> type[Table]:
    made: dict[str, Any] = {}
    for name, one in fields.items():
        kind: Any = one.kind | None if one.nullable else one.kind
        if one.indexed:
            kind = INDEXED[kind]
        if one.before:
            kind = Annotated[kind, RenamedFrom(one.before)]
        made[name] = (kind, None if one.nullable else DEFAULTS[one.kind])
    found: type[Table] = model(**made)
    return found


def converted(value: Any, one: Field) -> Any:
    """The twin's conversion."""
    if value is None:
        return None if one.nullable else DEFAULTS[one.kind]
    if one.kind is bytes:
        return value if isinstance(value, bytes) else str(value).encode()
    if one.kind is str and isinstance(value, bytes):
        return value.decode()
    return one.kind(value)


CHOICES = st.sampled_from(["rename", "type", "null", "index", "add", "drop", "counter"])
CONVERTIBLE: dict[type, list[type]] = {
    int: [str, float],
    float: [int],
    str: [int, bytes],
    bytes: [str],
}


COUNTERS: dict[type, list[type]] = {int: [str, float], str: [int], float: [int]}


@st.composite
def histories(draw: st.DrawFn) -> list[Fields]:
    """Declarations, each of which differs from the one before in some respects."""
    names = (f"c{number}" for number in itertools.count())
    fields: Fields = {"n": Field(int), next(names): Field(int), next(names): Field(str, nullable=True)}
    history = [fields]
    for _ in range(draw(st.integers(1, 3))):
        fields = {name: replace(one, before="") for name, one in fields.items()}
        for what in draw(st.lists(CHOICES, min_size=1, max_size=3)):
            others = [name for name in fields if name != "n"]
            name = draw(st.sampled_from(others)) if others else ""
            one = fields.get(name, Field(int))
            if what == "add" or not others:
                fields[next(names)] = Field(
                    draw(st.sampled_from(list(DEFAULTS))), draw(st.booleans()), draw(st.booleans())
                )
            elif what == "counter":
                fields["n"] = Field(draw(st.sampled_from(COUNTERS[history[-1]["n"].kind])))
            elif what == "rename" and not one.before and name in history[-1]:
                del fields[name]
                fields[next(names)] = replace(one, before=name)
            elif what == "type" and (one.before or name) in history[-1]:
                earlier = history[-1][one.before or name].kind
                fields[name] = replace(one, kind=draw(st.sampled_from(CONVERTIBLE[earlier])))
            elif what == "null":
                fields[name] = replace(one, nullable=not one.nullable)
            elif what == "index":
                fields[name] = replace(one, indexed=not one.indexed)
            elif what == "drop":
                del fields[name]
        history.append(dict(fields))
    return history


def evolved(twin: dict[int, dict[str, Any]], before: Fields, after: Fields) -> dict[int, dict[str, Any]]:
    """The rows of the twin after a migration, without the counter."""

    def value(row: dict[str, Any], name: str, one: Field) -> Any:
        source = one.before or name
        if source not in before:
            return None if one.nullable else DEFAULTS[one.kind]
        return converted(row[source], one)

    return {
        number: {name: value(row, name, one) for name, one in after.items() if name != "n"}
        for number, row in twin.items()
    }


def migrate(db: Database, before: Fields, after: Fields) -> list[Difference]:
    """Migrate, with all permissions."""
    kept = {one.before or name for name, one in after.items()}
    return db.migrate(
        [declared(after)],
        allow_drop=[f"items.{name}" for name in before if name not in kept],
        allow_narrowing=[f"items.{name}" for name in after],
    )


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    server = Server(next(iter(BINARIES.values())))
    yield server
    server.close()


def begun(db: Database, fields: Fields) -> dict[int, dict[str, Any]]:
    db.migrate([declared(fields)])
    twin = {
        number: {
            name: (None if one.nullable and number % 3 == 0 else one.kind(number * 5))
            for name, one in fields.items()
            if name != "n"
        }
        for number in range(ROWS)
    }
    with db.transaction() as t:
        for number, row in twin.items():
            t.insert("items", id=number, n=0, **row)
    return twin


@settings(max_examples=12)
@given(history=histories())
def test_random_models_agree_with_a_twin_while_clients_go_on(
    one_server: Server, history: list[Fields]
) -> None:
    for connect in connecting(one_server.unix):
        db = connect()
        twin = begun(db, history[0])
        with clients([connect(), connect()], connect()) as going:
            for before, after in itertools.pairwise(history):
                going.wait_for_more()
                migrate(db, before, after)
                assert db.migrate([declared(after)], dry_run=True) == []
                twin = evolved(twin, before, after)
                found = rows(db)
                assert {
                    row["id"]: {name: value for name, value in row.items() if name not in {"id", "n"}}
                    for row in found
                } == twin
                assert check_indexes(db.snapshot(), "items") == []
            going.wait_for_more()
        assert sum(int(row["n"]) for row in rows(db)) == going.done


class Crash(BaseException):
    pass


class Dying:
    """Dies at an event: a step of a schema change, or a transaction of the migration."""

    def __init__(self, db: Database, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = at
        dying = self

        class Changes(SchemaChanges):
            def steps(self, entry: Entry) -> Iterator[str]:
                for step in super().steps(entry):
                    dying.event()
                    yield step
                dying.event()

        run = db.run

        def dying_run(fn: Any, attempts: int = 10) -> Any:
            dying.event()
            found = run(fn, attempts)
            dying.event()
            return found

        monkeypatch.setattr(
            db, "schema_changes", Changes(db.client, Locks(db.client), BaseChanges(db.client))
        )
        monkeypatch.setattr(db, "run", dying_run)

    def event(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


BEFORE: Fields = {
    "n": Field(int),
    "a": Field(int, indexed=True),
    "b": Field(str, nullable=True),
    "x": Field(int),
}
AFTER: Fields = {
    "n": Field(str),
    "c": Field(str, indexed=True, before="a"),
    "b": Field(str),
    "d": Field(int, indexed=True),
}


PARTS = 8
"""The steps are divided, so that a slow machine has the time limit of a test for each part."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_at_each_step_is_continued(
    one_server: Server, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    for at in itertools.count(1 + part, PARTS):
        for connect in connecting(one_server.unix):
            if not crashes(connect, at, monkeypatch):
                assert at > 80
                return


def crashes(connect: Connect, at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Crash at an event, and continue with another client; return False if there is no such event."""
    db = connect()
    twin = begun(db, BEFORE)
    crashed = False
    with monkeypatch.context() as patch:
        Dying(db, at, patch)
        try:
            migrate(db, BEFORE, AFTER)
        except Crash:
            crashed = True
    other = connect()
    # A write between the crash and the repetition, by whatever definition there is now.
    other.run(lambda t: increment(t, 3))
    migrate(other, BEFORE, AFTER)
    assert other.migrate([declared(AFTER)]) == []
    expected = evolved(twin, BEFORE, AFTER)
    found = rows(other)
    assert {row["id"]: {name: row[name] for name in ("c", "b", "d")} for row in found} == expected
    assert [row["n"] for row in found] == ["1" if row["id"] == 3 else "0" for row in found]
    assert check_indexes(other.snapshot(), "items") == []
    other.schema_changes.finish_all()
    assert len(other.tables()) == 3
    return crashed
