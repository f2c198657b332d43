"""Migrations: each kind of difference is found, described, made online, or refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from percolator_core import (
    Chain,
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PrimaryKey,
    Range,
    RenamedFrom,
    RowExists,
    Snapshot,
    SnapshotTooOld,
    Table,
    TableDefinition,
    Unique,
    UnknownTable,
)
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.maintenance.locks import Locks
from percolator_core.migration import type_change
from percolator_core.notifications.activation import activate
from percolator_core.schema.definition_changes import copy_of
from percolator_core.schema.definitions import Column
from percolator_core.schema.predicates import ColumnExpression
from percolator_core.tables import lookup
from percolator_core.tables.model import definition_of
from percolator_core.tables.verify import check_indexes
from percolator_core.transaction.oracle import Oracle
from tests.maintenance.test_schema_change import stop_after
from tests.migration.models import ROWS, clients, model, rows

Connect = Callable[..., Database]

FIELDS: dict[str, Any] = {"n": (int, 0), "kind": (str, "x"), "note": (str | None, None)}
FIRST = model(**FIELDS)


def fill(db: Database, **values: Any) -> None:
    with db.transaction() as t:
        for number in range(ROWS):
            t.insert("items", id=number, **{"n": 0, "kind": f"k{number % 5}", "note": None} | values)


def column_of(table: type[Table]) -> Column:
    return definition_of(table).by_name["n"]


@pytest.fixture
def made(connect: Connect) -> Database:
    db = connect()
    assert [one.kind for one in db.migrate([FIRST])] == ["create table"]
    fill(db)
    return db


def test_tables_that_agree_need_nothing(made: Database) -> None:
    assert made.migrate([FIRST]) == []
    assert made.migrate([FIRST], dry_run=True) == []


def test_a_dry_run_changes_nothing(made: Database) -> None:
    before = made.tables()
    wanted = model(n=(str, "0"), sort=(Annotated[Indexed[str], RenamedFrom("kind")], "x"), more=(int, 1))
    found = made.migrate([wanted, TableDefinition("raw")], dry_run=True)
    assert [(one.kind, one.table, one.name) for one in found] == [
        ("rename column", "items", "sort"),
        ("change type", "items", "n"),
        ("drop column", "items", "note"),
        ("add column", "items", "more"),
        ("add index", "items", "sort"),
        ("create table", "raw", ""),
    ]
    assert made.tables() == before


def test_a_column_is_renamed_by_its_hint_which_may_stay(made: Database) -> None:
    wanted = model(n=(int, 0), sort=(Annotated[str, RenamedFrom("kind")], "x"), note=(str | None, None))
    assert [one.kind for one in made.migrate([wanted])] == ["rename column"]
    assert rows(made)[7]["sort"] == "k2"
    assert made.migrate([wanted]) == []
    # A later column may have the earlier name, with the hint still there.
    again = model(
        n=(int, 0),
        sort=(Annotated[str, RenamedFrom("kind")], "x"),
        note=(str | None, None),
        kind=(str, "new"),
    )
    assert [one.kind for one in made.migrate([again])] == ["add column"]
    assert (rows(made)[7]["sort"], rows(made)[7]["kind"]) == ("k2", "new")
    assert made.migrate([again]) == []


def test_renames_in_a_row_keep_their_columns(made: Database) -> None:
    wanted = model(
        n=(int, 0),
        note=(Annotated[str, RenamedFrom("kind")], "x"),
        text=(Annotated[str | None, RenamedFrom("note")], None),
    )
    assert [one.name for one in made.migrate([wanted])] == ["text", "note"]
    assert (rows(made)[7]["note"], rows(made)[7]["text"]) == ("k2", None)
    assert made.migrate([wanted]) == []


def test_a_column_with_data_is_dropped_only_by_name(made: Database) -> None:
    wanted = model(n=(int, 0), note=(str | None, None), other=(int, 1))
    with pytest.raises(
        ConfigurationError, match=r"its data would be lost: allow it with --allow-drop items.k"
    ):
        made.migrate([wanted])
    assert "other" not in rows(made)[0]  # a refused difference stops all
    done = made.migrate([wanted], allow_drop=["items.kind"])
    assert [one.kind for one in done] == ["drop column", "add column"]
    assert rows(made)[0] == {"id": 0, "n": 0, "note": None, "other": 1}
    assert made.migrate([wanted], allow_drop=["items.kind"]) == []


def test_a_table_is_dropped_only_by_name(made: Database) -> None:
    made.create_table("other")
    assert made.migrate([FIRST]) == []
    with pytest.raises(ValueError, match="items is declared"):
        made.migrate([FIRST], allow_drop=["items"])
    assert [one.kind for one in made.migrate([FIRST], allow_drop=["other"])] == ["drop table"]
    with pytest.raises(UnknownTable):
        made.catalog.table("other")


def test_a_column_that_rows_cannot_have_is_refused(made: Database) -> None:
    for field, match in (
        ((int, ...), "give the column a default"),
        ((int | None, 7), "may be null, so existing rows have null"),
    ):
        fields: dict[str, Any] = {"n": (int, 0), "kind": (str, "x"), "note": (str | None, None), "bad": field}
        with pytest.raises(ConfigurationError, match=match):
            made.migrate([model(**fields)])


class Sold(Table, name="sold", partition=[Range("day", splits=[10])]):
    day: PrimaryKey[int]
    text: str = ""


class SoldLater(Table, name="sold", partition=[Range("day", splits=[10, 20])]):
    day: PrimaryKey[int]
    text: str = ""


class SoldEarlier(Table, name="sold", partition=[Range("day", splits=[5, 10, 20])]):
    day: PrimaryKey[int]
    text: str = ""


def test_ranges_are_added_where_no_row_has_to_move(connect: Connect) -> None:
    db = connect()
    db.migrate([Sold])
    with db.transaction() as t:
        for day in (1, 7, 12):
            t.insert(Sold(day=day))
    assert [one.kind for one in db.migrate([SoldLater])] == ["add range"]
    assert db.migrate([Sold]) == []  # a range of a newer program is no difference
    with pytest.raises(ConfigurationError, match="a split there would move rows, such as day=1 below it"):
        db.migrate([SoldEarlier])


def test_an_index_is_built_online_and_removed(made: Database, connect: Connect, monkeypatch: Any) -> None:
    indexed = model(n=(int, 0), kind=(Indexed[str], "x"), note=(str | None, None))
    old = made.snapshot()
    list(old.select("items"))
    with clients([connect(), connect()], connect()) as going:
        going.wait_for_more()
        assert [one.kind for one in made.migrate([indexed])] == ["add index"]
        going.wait_for_more()
    assert check_indexes(made.snapshot(), "items") == []
    monkeypatch.setattr(lookup, "FEW", 0)
    monkeypatch.setattr(lookup, "A_FETCH", 0)
    where = ColumnExpression("kind") == "k2"
    new = made.snapshot()
    assert "index items(kind)" in new.explain("items", where)
    assert [row["id"] for row in new.select("items", where)] == list(range(2, ROWS, 5))
    # A snapshot from before the index does not use it.
    for early in (old, made.snapshot(old.start_timestamp)):
        assert "index" not in early.explain("items", where)
        assert [row["id"] for row in early.select("items", where)] == list(range(2, ROWS, 5))
    assert [one.kind for one in made.migrate([FIRST])] == ["drop index"]
    assert [one.name for one in made.tables()] == ["items"]
    assert [one.kind for one in made.migrate([indexed])] == ["add index"]
    assert check_indexes(made.snapshot(), "items") == []


def test_no_select_uses_an_index_that_is_being_built(made: Database, monkeypatch: Any) -> None:
    made.schema_changes.add_index("items", "kind", unique=False)
    monkeypatch.setattr(lookup, "FEW", 0)
    monkeypatch.setattr(lookup, "A_FETCH", 0)
    where = ColumnExpression("kind") == "k2"
    assert [row["id"] for row in made.snapshot().select("items", where)] == list(range(2, ROWS, 5))
    indexed = model(n=(int, 0), kind=(Indexed[str], "x"), note=(str | None, None))
    made.create_table(indexed)  # programs of the new model may start before the end
    assert [one.kind for one in made.migrate([indexed], dry_run=True)] == ["add index"]
    made.migrate([indexed])
    assert "index" in made.snapshot().explain("items", where)


def test_equal_values_of_a_unique_column_are_named(made: Database) -> None:
    unique = model(n=(int, 0), kind=(Unique[str], "x"), note=(str | None, None))
    with pytest.raises(
        RowExists, match="items has the same value of the unique column kind in two rows, id="
    ):
        made.migrate([unique])
    with made.transaction() as t:
        for number in range(ROWS):
            t.update("items", id=number, kind=f"u{number}")
    made.migrate([unique])
    with pytest.raises(RowExists), made.transaction() as t:
        t.update("items", id=1, kind="u2")


def test_an_index_of_a_column_with_a_default_has_an_entry_of_each_row(
    made: Database, monkeypatch: Any
) -> None:
    wanted = model(**FIELDS, stars=(Indexed[int], 3))
    assert [one.kind for one in made.migrate([wanted])] == ["add column", "add index"]
    monkeypatch.setattr(lookup, "FEW", 0)
    monkeypatch.setattr(lookup, "A_FETCH", 0)
    with made.transaction() as t:
        t.update("items", id=1, stars=4)
        t.insert("items", id=ROWS, n=0, kind="x")
    found = made.snapshot()
    assert "index" in found.explain("items", ColumnExpression("stars") == 3)
    assert len(list(found.select("items", ColumnExpression("stars") == 3))) == ROWS


@pytest.mark.parametrize(
    ("old", "values", "new", "expected"),
    [
        (int, [0, -5, 2**62], str, ["0", "-5", str(2**62)]),
        (float, [0.5, -1e300, float("inf")], str, ["0.5", "-1e+300", "inf"]),
        (bool, [True, False], int, [1, 0]),
        (date, [date(2020, 2, 29)], datetime, [datetime(2020, 2, 29, tzinfo=UTC)]),
        (str, ["é", ""], bytes, ["é".encode(), b""]),
    ],
)
def test_a_wider_type_needs_no_permission(
    connect: Connect, old: Any, values: list[Any], new: Any, expected: list[Any]
) -> None:
    db = connect()
    db.migrate([model(value=(old, ...))])
    with db.transaction() as t:
        for number, value in enumerate(values):
            t.insert("items", id=number, value=value)
    assert [one.kind for one in db.migrate([model(value=(new, ...))])] == ["change type"]
    assert [row["value"] for row in rows(db)] == expected
    assert db.catalog.table("items").definition.copies == ()


@pytest.mark.parametrize(
    ("old", "good", "new", "expected", "bad"),
    [
        (str, ["7", "-1"], int, [7, -1], "007"),
        (str, ["0.5"], float, [0.5], "a"),
        (float, [2.0], int, [2], 2.5),
        (int, [1, 0], bool, [True, False], 2),
        (float, [0.1], Decimal, [Decimal("0.1")], 1e-30),
        (
            datetime,
            [datetime(2020, 1, 2, tzinfo=UTC)],
            date,
            [date(2020, 1, 2)],
            datetime(2020, 1, 2, 3, tzinfo=UTC),
        ),
        (int, [5], float, [5.0], 2**53 + 1),
        (bytes, [b"a"], str, ["a"], b"\xff"),
        (int | None, [1], int, [1], None),
    ],
)
def test_a_narrower_type_is_exact_or_refused(  # noqa: PLR0917
    connect: Connect, old: Any, good: list[Any], new: Any, expected: list[Any], bad: Any
) -> None:
    db = connect()
    if new is Decimal:
        new = Annotated[Decimal, Field(max_digits=20, decimal_places=10)]
    wanted = model(value=(new, ...))
    db.migrate([model(value=(old, ...))])
    with db.transaction() as t:
        for number, value in enumerate([*good, bad]):
            t.insert("items", id=number, value=value)
    with pytest.raises(ConfigurationError, match=r"allow it with --allow-narrowing items\.value"):
        db.migrate([wanted])
    with pytest.raises(ConfigurationError, match=f"row id={len(good)}: .*the column stays as it is"):
        db.migrate([wanted], allow_narrowing=["items.value"])
    assert db.catalog.table("items").definition.copies == ()
    with db.transaction() as t:
        t.remove("items", id=len(good))
    db.migrate([wanted], allow_narrowing=["items.value"])
    assert [row["value"] for row in rows(db)] == expected
    db.create_table(wanted)


def test_null_becomes_the_default(connect: Connect) -> None:
    db = connect()
    db.migrate([model(value=(int | None, None))])
    with db.transaction() as t:
        t.insert("items", id=0, value=5)
        t.insert("items", id=1, value=None)
    wanted = model(value=(str, "none"))
    db.migrate([wanted], allow_narrowing=["items.value"])
    assert [row["value"] for row in rows(db)] == ["5", "none"]
    assert [one.kind for one in db.migrate([model(value=(str | None, None))])] == ["change type"]
    with db.transaction() as t:
        t.update("items", id=0, value=None)
    assert [row["value"] for row in rows(db)] == [None, "none"]


def test_a_column_with_a_default_for_older_rows_may_become_null(made: Database) -> None:
    fields: dict[str, Any] = {"n": (int, 0), "kind": (str, "x"), "note": (str | None, None)}
    made.migrate([model(**fields, stars=(int, 3))])
    made.migrate([model(**fields, stars=(int | None, None))])
    with made.transaction() as t:
        t.update("items", id=1, stars=None)
        t.insert("items", id=ROWS, n=0, kind="x")
    assert [row["stars"] for row in rows(made)] == [3, None, *[3] * (ROWS - 2), None]


def test_no_write_is_lost_while_a_type_changes(connect_to_every_kind: Connect) -> None:
    db = connect_to_every_kind()
    db.migrate([FIRST])
    fill(db)
    with clients([connect_to_every_kind(), connect_to_every_kind()], connect_to_every_kind()) as going:
        for kind in (str, int, float, int):
            going.wait_for_more()
            wanted = model(n=(kind, ...), kind=(str, "x"), note=(str | None, None))
            done = db.migrate([wanted], allow_narrowing=["items.n"])
            assert [one.kind for one in done] == ["change type"]
        going.wait_for_more()
    assert sum(row["n"] for row in rows(db)) == going.done


def test_writers_of_the_old_type_go_on_until_the_switch(made: Database) -> None:
    changes = made.schema_changes
    wanted = model(n=(str, "0"), kind=(str, "x"), note=(str | None, None))
    changes.start_copy("items", column_of(wanted), None)
    made.create_table(FIRST)
    with made.transaction() as t:
        t.update(FIRST(id=1, n=8))
        t.insert(FIRST(id=ROWS, n=9))
        t.remove(FIRST, id=2)
    assert set(rows(made)[0]) == {"id", "n", "kind", "note"}  # the copy is internal
    made.migrate([wanted])
    assert [row["n"] for row in rows(made)][:3] == ["0", "8", "0"]
    assert rows(made)[-1]["n"] == "9"
    with pytest.raises(
        ConfigurationError, match=r"has the type str, but the model has int: .*percolator migrate"
    ):
        made.snapshot().find(FIRST, id=1)
    with pytest.raises(ConfigurationError, match="`percolator migrate` changes it"):
        made.create_table(FIRST)


def test_writes_after_the_verification_are_in_the_copy(made: Database) -> None:
    changes, wanted = made.schema_changes, model(n=(str, "0"), kind=(str, "x"), note=(str | None, None))
    changes.start_copy("items", column_of(wanted), None)
    stored = type_change.ColumnCopy(made, changes, "items", column_of(wanted), None).fill()
    assert stored is not None
    with made.transaction() as t:
        t.update(FIRST(id=1, n=8))
        t.insert(FIRST(id=ROWS, n=9))
        t.remove(FIRST, id=2)
        t.upsert(FIRST(id=3, n=10, kind="y", note="z"))
    changes.switch_to_copy("items", stored)
    assert [row["n"] for row in rows(made)][:4] == ["0", "8", "10", "0"]
    assert rows(made)[-1]["n"] == "9"


@pytest.mark.parametrize("steps", [0, 3], ids=["before-the-fence", "before-the-sweep"])
def test_a_late_client_refuses_no_snapshot_of_the_new_definition(
    made: Database, connect: Connect, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    changes, wanted = made.schema_changes, model(n=(str, "0"), kind=(str, "x"), note=(str | None, None))
    changes.start_copy("items", column_of(wanted), None)
    stored = type_change.ColumnCopy(made, changes, "items", column_of(wanted), None).fill()
    assert stored is not None
    assert stop_after(made, steps, lambda dying: dying.switch_to_copy("items", stored))
    late, timestamp = connect(), Oracle.timestamp
    snapshots: list[Snapshot] = []

    def overtaken(oracle: Oracle) -> int:
        if oracle is late.client.oracle and not snapshots:
            made.schema_changes.finish_all()
            snapshots.append(made.snapshot())
            assert snapshots[0].find(wanted, id=1) is not None
        return timestamp(oracle)

    monkeypatch.setattr(Oracle, "timestamp", overtaken)
    late.schema_changes.finish_all()
    assert [row["n"] for row in snapshots[0].select("items")] == ["0"] * ROWS


def test_a_value_that_the_new_type_does_not_have_is_refused_during_the_copy(connect: Connect) -> None:
    db = connect()
    old, new = model(n=(str, "0")), model(n=(int, 0))
    db.migrate([old])
    db.schema_changes.start_copy("items", column_of(new), None)
    match = r"items, row id=1: n: 'x' is not exactly a value of the type int"
    with pytest.raises(ValueError, match=match), db.transaction() as t:
        t.insert(old(id=1, n="x"))
    assert rows(db) == []
    with db.transaction() as t:
        t.insert(old(id=1, n="5"))
    # The old declaration takes the change back.
    assert [one.change for one in db.migrate([old])] == [
        "the unfinished change of items.n to int is taken back"
    ]
    with db.transaction() as t:
        t.update(old(id=1, n="x"))
    assert rows(db) == [{"id": 1, "n": "x"}]


def test_an_unfinished_change_to_another_type_is_replaced(connect: Connect) -> None:
    db = connect()
    db.migrate([model(n=(int, 0))])
    with db.transaction() as t:
        t.insert("items", id=1, n=5)
    db.schema_changes.start_copy("items", column_of(model(n=(float, 0.0))), None)
    db.migrate([model(n=(str, "0"))])
    assert rows(db) == [{"id": 1, "n": "5"}]


def test_a_copy_that_differs_is_not_switched_to(made: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(type_change.ColumnCopy, "_write", lambda *_: None)
    wanted = model(n=(str, "0"), kind=(str, "x"), note=(str | None, None))
    with pytest.raises(
        Exception, match="the copy still differs from the column, so the column was not changed"
    ):
        made.migrate([wanted])
    assert rows(made)[0]["n"] == 0
    monkeypatch.undo()
    made.migrate([wanted])
    assert rows(made)[0]["n"] == "0"


def test_an_index_that_differs_is_not_used(made: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(type_change, "rebuild_indexes", lambda *_: 0)
    indexed = model(n=(int, 0), kind=(Indexed[str], "x"), note=(str | None, None))
    with pytest.raises(Exception, match="the index still differs from the rows, so it is not used"):
        made.migrate([indexed])
    assert made.catalog.table("items").definition.indexes[0].complete_from is None
    monkeypatch.undo()
    made.migrate([indexed])
    assert check_indexes(made.snapshot(), "items") == []


def test_the_index_of_a_column_follows_its_new_type(connect: Connect) -> None:
    db = connect()
    db.migrate([model(n=(Unique[int], ...), kind=(Indexed[int], ...))])
    with db.transaction() as t:
        for number in range(20):
            t.insert("items", id=number, n=number, kind=number % 3)
    wanted = model(n=(Unique[str], ...), kind=(Indexed[str], ...))
    assert [one.kind for one in db.migrate([wanted])] == ["change type", "change type"]
    assert check_indexes(db.snapshot(), "items") == []
    assert [row["id"] for row in db.snapshot().select("items", ColumnExpression("n") == "7")] == [7]
    with pytest.raises(RowExists), db.transaction() as t:
        t.insert("items", id=99, n="7", kind="0")
    assert len(db.tables()) == 3


def test_older_snapshots_are_refused_rather_than_wrong(made: Database) -> None:
    class Stopped(SchemaChanges):
        """Stops when a definition was published that removes cells, before the cells are removed."""

        def steps(self, entry: Entry) -> Iterator[str]:
            for step in super().steps(entry):
                yield step
                if step == "publish" and (entry.pending or {}).get("sweep"):
                    raise KeyboardInterrupt

    at = made.timestamp()
    made.schema_changes = Stopped(made.client, Locks(made.client), BaseChanges(made.client))
    with pytest.raises(KeyboardInterrupt):
        made.migrate([model(n=(str | None, None), kind=(str, "x"), note=(str | None, None))])
    assert made.catalog.table("items").definition.column("n").type == "str"
    with pytest.raises(SnapshotTooOld):
        list(made.snapshot(at).select("items"))


def test_an_observed_column_keeps_its_type(made: Database) -> None:
    activate(made, {("items", "n"): ("watcher",)}, "digest")
    wanted = model(n=(str, "0"), kind=(str, "x"), note=(str | None, None))
    with pytest.raises(ConfigurationError, match="the observer 'watcher' observes the column: remo"):
        made.migrate([wanted])


class Keyed(Table, name="items", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[str]
    n: int = 0
    kind: str = "x"
    note: str | None = None


class TwoKeys(Table, name="items", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[int]
    n: PrimaryKey[int]
    kind: str = "x"
    note: str | None = None


class Spread(Table, name="items", partition=[Hash("id", buckets=4)]):
    id: PrimaryKey[int]
    n: int = 0
    kind: str = "x"
    note: str | None = None


class Uuid(Table, name="items", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[int]
    n: date
    kind: str = "x"
    note: str | None = None


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        (Keyed, "the types of a key cannot change: declare a table with another name"),
        (TwoKeys, "a key cannot change: declare a table with another name"),
        (Spread, "rows do not move to other tablets: declare the rules that the table has"),
        (Uuid, "there is no conversion to date: add another column"),
        (TableDefinition("items"), "is declared as a raw table, and is a typed one"),
    ],
)
def test_what_has_no_online_change_is_refused_with_the_mend(made: Database, wanted: Any, match: str) -> None:
    before = made.tables()
    with pytest.raises(ConfigurationError, match=match):
        made.migrate([wanted], allow_narrowing=["items.n"])
    assert made.tables() == before


def test_raw_tables(connect: Connect) -> None:
    db = connect()
    db.migrate([TableDefinition("raw", 2)])
    with db.transaction() as t:
        t.set("raw", "a", "used", b"1")
    with pytest.raises(ConfigurationError, match="the number of tablets cannot change: declare 2"):
        db.migrate([TableDefinition("raw", 3)])
    with pytest.raises(ConfigurationError, match=r"raw\.used holds data"):
        db.migrate([TableDefinition("raw", 2, ("used",))])
    added = TableDefinition("raw", 2, ("ping",))
    assert [one.kind for one in db.migrate([added])] == ["add notify-only column"]
    with db.transaction() as t:
        t.notify("raw", "a", "ping")
    with pytest.raises(ConfigurationError, match="its notifications would be lost: declare it"):
        db.migrate([TableDefinition("raw", 2)])


def test_a_base_is_set_and_changed(connect: Connect, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    chain.mkdir()
    (chain / "look.yaml").write_text(
        "version: 1\nobserver: look\nobserve: raw.a\nfunction: tests.migration.models:ignore\n"
    )
    yaml = "version: 1\nchain: c\ntables:\n  raw: {{tablets: 2, base: {{location: 'file:base', {}}}}}\n"
    (chain / "chain.yaml").write_text(yaml.format("memory: 1MB"))
    db = connect()
    assert [one.kind for one in Chain.load(chain).migrate(db)] == ["create table", "set base"]
    assert Chain.load(chain).migrate(db) == []
    (chain / "chain.yaml").write_text(yaml.format("memory: 2MB, cold_after: 1h"))
    assert [one.kind for one in Chain.load(chain).migrate(db)] == ["set base"]
    rule = db.catalog.table("raw").definition.base
    assert rule is not None
    assert (rule.memory, rule.cold_after) == (2_000_000, 3_600_000_000)
    Chain.load(chain).create_tables(db)


def test_two_migrations_at_once(connect: Connect) -> None:
    db = connect()
    db.migrate([FIRST])
    fill(db)
    wanted = model(
        n=(str, "0"), sort=(Annotated[Indexed[str], RenamedFrom("kind")], "x"), stars=(Indexed[int], 3)
    )
    errors: list[BaseException] = []

    def migrate(other: Database) -> None:
        try:
            other.migrate([wanted], allow_drop=["items.note"])
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [threading.Thread(target=migrate, args=(connect(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    assert db.migrate([wanted]) == []
    assert rows(db)[7] == {"id": 7, "n": "0", "sort": "k2", "stars": 3}
    assert check_indexes(db.snapshot(), "items") == []
    assert copy_of(db.catalog.table("items").definition, "n") is None
    assert len(db.tables()) == 3


def test_a_step_of_another_migration_refuses_the_snapshot_of_a_copy(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, other = connect(), connect()
    db.migrate([FIRST])
    fill(db)
    db.migrate([model(**FIELDS, stars=(int, 3))])
    original, overtaken = getattr(type_change.ColumnCopy, "_differing"), list[str]()  # noqa: B009

    def first_the_other(copy: type_change.ColumnCopy, snapshot: Snapshot, *args: Any) -> Any:
        if not overtaken:
            overtaken.append("by another client, which has not built the index yet")
            assert snapshot.start_timestamp
            replace(copy, db=other, changes=other.schema_changes).run()
        return original(copy, snapshot, *args)

    monkeypatch.setattr(type_change.ColumnCopy, "_differing", first_the_other)
    wanted = model(**FIELDS, stars=(Indexed[int], 3))
    assert [one.kind for one in db.migrate([wanted])] == ["add index"]
    assert overtaken
    assert check_indexes(db.snapshot(), "items") == []


@pytest.mark.parametrize("step", ["start", "copied", "built"])
def test_an_index_whose_copy_another_migration_finishes(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    db, other = connect(), connect()
    db.migrate([FIRST])
    fill(db)
    wanted = model(**FIELDS, stars=(Indexed[int], 3))
    assert [one.kind for one in other.migrate([model(**FIELDS, stars=(int, 3))])] == ["add column"]
    where: tuple[Any, str] = {
        "start": (type_change.ColumnCopy, "_check_values"),
        "copied": (type_change.ColumnCopy, "fill"),
        "built": (type_change, "build_index"),
    }[step]
    original, overtaken = getattr(*where), list[str]()

    def first_the_other(*args: Any, **settings: Any) -> Any:
        if not overtaken:
            overtaken.append("by another client")
            overtaken.extend(one.kind for one in other.migrate([wanted]))
        return original(*args, **settings)

    monkeypatch.setattr(*where, first_the_other)
    assert [one.kind for one in db.migrate([wanted])] == ["add index"]
    assert overtaken[1:] == [*(["change type"] if step in {"copied", "built"} else []), "add index"]
    assert db.migrate([wanted]) == []
    assert rows(db)[7] == {"id": 7, "n": 0, "kind": "k2", "note": None, "stars": 3}
    assert check_indexes(db.snapshot(), "items") == []
    stored = db.catalog.table("items").definition.by_name["stars"].stored
    assert stored == "2.stars"  # one copy was made
