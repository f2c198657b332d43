"""Tables of PostgreSQL arrive as they are: each kind of change, each type, each transaction as a whole."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import Field
from structlog.testing import capture_logs

from percolator_core import PrimaryKey, Table, Unique
from percolator_core.errors import ConfigurationError, UnknownTable
from percolator_core.replication import ReplicationStopped, replicate
from percolator_core.replication.apply import SlotState
from percolator_core.replication.messages import Decoder
from percolator_core.replication.server import PostgreSQL
from tests.replication.conftest import Shop

LARGE = "repeat('x', 20000)"


def test_the_copy_then_each_kind_of_change(shop: Shop) -> None:
    shop.items("INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 2500) AS n")
    report = shop.replicate()
    assert (report.copied, report.new, report.transactions) == (2500, 2500, 0)
    assert shop.rows() == shop.expected()
    shop.sql(
        "INSERT INTO items VALUES (0, 'zero', NULL), (-1, '', 1.5)",
        "UPDATE items SET name = 'two' WHERE id = 2",
        "UPDATE items SET name = NULL WHERE id = 3",
        "UPDATE items SET id = 9000, price = 7 WHERE id = 4",
        "UPDATE items SET id = id + 10000 WHERE id BETWEEN 10 AND 20",
        "DELETE FROM items WHERE id > 1000 AND id < 2000",
    )
    report = shop.replicate()
    assert (report.copied, report.transactions) == (0, 6)
    assert report.lag_bytes is not None
    assert shop.rows() == shop.expected()
    assert shop.replicate().changes == 0


def test_a_truncation_and_rows_after_it(shop: Shop) -> None:
    shop.items("INSERT INTO items SELECT n, 'n', 1 FROM generate_series(1, 50) AS n")
    shop.replicate()
    with shop.connection.transaction():
        shop.sql("INSERT INTO items VALUES (100, 'gone', 1)", "TRUNCATE items")
        shop.sql("INSERT INTO items VALUES (7, 'n', 1), (200, 'new', 2)")
    report = shop.replicate()
    assert shop.rows() == shop.expected()
    assert len(shop.rows()) == 2
    assert (report.new, report.changed, report.deleted) == (1, 0, 49)
    assert len(shop.db.history("items", "7", "name")) == 1, "an equal cell was written"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("typed", [False, True])
def test_large_values_that_an_update_leaves(shop: Shop, identity: str, typed: bool) -> None:
    class Item(Table, name="items"):
        id: PrimaryKey[int]
        text: str | None = None
        number: int | None = None

    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, text text, number int)",
        "ALTER TABLE items ALTER text SET STORAGE EXTERNAL",
        f"ALTER TABLE items REPLICA IDENTITY {identity}",
        "CREATE PUBLICATION shop FOR TABLE items",
        f"INSERT INTO items SELECT n, n || {LARGE}, n FROM generate_series(1, 4) AS n",
    )
    if typed:
        shop.db.create_table(Item)
    else:
        shop.db.create_table("items")
    shop.replicate()
    shop.sql(
        "UPDATE items SET number = 10 WHERE id = 1",
        "UPDATE items SET id = 20 WHERE id = 2",
        "UPDATE items SET id = id + 100, number = 0 WHERE id IN (1, 20)",
        f"INSERT INTO items VALUES (5, {LARGE}, 5)",
        "UPDATE items SET id = 50 WHERE id = 5",
    )
    with shop.connection.transaction():
        shop.sql("DELETE FROM items WHERE id = 3", "INSERT INTO items VALUES (3, NULL, 3)")
        shop.sql("UPDATE items SET number = 33 WHERE id = 3")
    shop.replicate()
    if typed:
        found = [(one.id, one.text, one.number) for one in shop.db.snapshot().select(Item)]
        assert found == shop.sql("SELECT * FROM items ORDER BY id")
    else:
        assert shop.rows() == shop.expected()


class Thing(Table, name="things"):
    id: PrimaryKey[UUID]
    yes: bool
    whole: int
    real: float
    exact: Annotated[Decimal, Field(max_digits=10, decimal_places=3)]
    text: str
    maybe: str | None
    raw: bytes
    at: datetime
    local: datetime
    day: date
    tree: dict[str, Any]
    short: str
    own: bool
    extra: str | None = "default"


def test_values_of_each_type(shop: Shop) -> None:
    shop.sql(
        "CREATE DOMAIN yes_or_no AS bool",
        "CREATE DOMAIN really AS yes_or_no",
        "CREATE TYPE size AS ENUM ('S', 'L')",
        "CREATE TABLE things (id uuid PRIMARY KEY, yes bool, whole bigint, real float8, exact numeric, "
        "text text, maybe text, raw bytea, at timestamptz, local timestamp, day date, tree jsonb, "
        "short size, own really, unknown interval)",
        "INSERT INTO things VALUES ('6f1f7c1e-0000-4000-8000-000000000001', true, -9223372036854775808, "
        "'Infinity', -1234567.125, '', '', '\\x00ff27', '2024-02-29 23:59:59.000001+05:30', "
        "'2024-02-29 12:00:00.5', '0001-01-01', '{\"a\": [1, null, \"ü\"]}', 'L', false, '1 day')",
        "CREATE PUBLICATION shop FOR TABLE things",
    )
    shop.db.create_table(Thing)
    with capture_logs() as logs:
        shop.replicate()
    assert [one["columns"] for one in logs if "columns" in one] == [["unknown"]]
    shop.sql(
        "INSERT INTO things SELECT '6f1f7c1e-0000-4000-8000-000000000002', yes, whole, real, exact, text, "
        "maybe, raw, at, local, day, tree, short, own FROM things"
    )
    shop.replicate()
    one, other = shop.db.snapshot().select(Thing)
    assert one.model_dump(exclude={"id"}) == other.model_dump(exclude={"id"})
    assert one.model_dump() == {
        "id": UUID("6f1f7c1e-0000-4000-8000-000000000001"),
        "yes": True,
        "whole": -(2**63),
        "real": float("inf"),
        "exact": Decimal("-1234567.125"),
        "text": "",
        "maybe": "",
        "raw": b"\x00\xff'",
        "at": datetime(2024, 2, 29, 18, 29, 59, 1, UTC),
        "local": datetime(2024, 2, 29, 12, 0, 0, 500000, UTC),
        "day": date(1, 1, 1),
        "tree": {"a": [1, None, "ü"]},
        "short": "L",
        "own": False,
        "extra": None,
    }


def test_texts_in_a_raw_table(shop: Shop) -> None:
    shop.sql(
        "SET timezone = 'Asia/Kolkata'",
        "CREATE TABLE items (a text, b int, yes bool, raw bytea, at timestamptz, local timestamp, "
        "list int[], PRIMARY KEY (a, b))",
        "CREATE PUBLICATION shop FOR TABLE items",
        "INSERT INTO items VALUES ('ü\"', 7, true, '\\x00ff', '2024-02-29 12:00+00', '2024-02-29 12:00', "
        "'{1,2}')",
        "INSERT INTO items VALUES ('b', 8, NULL, '', 'infinity', '-infinity', NULL)",
    )
    shop.db.create_table("items")
    shop.replicate()
    shop.sql("INSERT INTO items SELECT 'c', b, yes, raw, at, local, list FROM items WHERE b = 7")
    shop.replicate()
    cells = {
        "b": b"7",
        "yes": b"true",
        "raw": b"\x00\xff",
        "at": b"2024-02-29T12:00:00+00:00",
        "local": b"2024-02-29T12:00:00",
        "list": b"{1,2}",
    }
    assert dict(shop.db.snapshot().scan("items")) == {
        '["ü\\"","7"]'.encode(): {"a": 'ü"'.encode(), **cells},
        b'["c","7"]': {"a": b"c", **cells},
        b'["b","8"]': {"a": b"b", "b": b"8", "raw": b"", "at": b"infinity", "local": b"-infinity"},
    }


def test_a_transaction_stays_a_transaction(shop: Shop) -> None:
    shop.items("CREATE TABLE others (id int PRIMARY KEY)")
    shop.sql("ALTER PUBLICATION shop ADD TABLE others")
    shop.db.create_table("others", tablets=3)
    shop.replicate()
    with shop.connection.transaction():
        shop.sql("INSERT INTO items SELECT n FROM generate_series(1, 1500) AS n")
        shop.sql("INSERT INTO others SELECT n FROM generate_series(1, 1500) AS n")
    report = shop.replicate()
    assert (report.transactions, report.changes) == (1, 3000)
    commits = {
        shop.db.history(table, str(row), "id")[0].commit_ts
        for table in ("items", "others")
        for row in (1, 700, 1500)
    }
    position = shop.db.history("replication", shop.slot, "position")
    assert len(commits) == 1
    assert commits < {version.commit_ts for version in position}


def test_equal_cells_are_not_written(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1), (2, 'two', 2)")
    shop.replicate()
    shop.sql("UPDATE items SET name = name", "UPDATE items SET price = 5 WHERE id = 1")
    with shop.connection.transaction():
        shop.sql("DELETE FROM items", "INSERT INTO items VALUES (1, 'one', 5), (2, 'two', 2)")
    report = shop.replicate()
    assert (report.changes, report.new + report.changed + report.deleted) == (7, 1)
    assert [len(shop.db.history("items", "1", name)) for name in ("name", "price")] == [1, 2]


def test_values_of_a_unique_column_are_exchanged(shop: Shop) -> None:
    class Item(Table, name="items"):
        id: PrimaryKey[int]
        name: Unique[str]

    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE PUBLICATION shop FOR TABLE items",
    )
    shop.db.create_table(Item)
    shop.replicate()
    with shop.connection.transaction():
        shop.sql("UPDATE items SET name = chr(ascii(name) + 1)", "DELETE FROM items WHERE id = 3")
        shop.sql("UPDATE items SET name = CASE id WHEN 1 THEN 'b' ELSE 'a' END")
    shop.replicate()
    found = [(one.id, one.name) for one in shop.db.snapshot().select(Item)]
    assert found == [(1, "b"), (2, "a")] == shop.sql("SELECT * FROM items ORDER BY id")
    assert [one.id for one in shop.db.snapshot().select(Item, where=Item.name == "b")] == [1]


def test_new_and_dropped_columns_are_reported(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    shop.replicate()
    with capture_logs() as logs:
        shop.sql("ALTER TABLE items ADD color text DEFAULT 'red'")
        shop.sql("INSERT INTO items VALUES (2, 'two', 2, 'blue')")
        shop.replicate()
        with shop.connection.transaction():
            shop.sql("UPDATE items SET name = 'zwei' WHERE id = 2", "ALTER TABLE items DROP name")
            shop.sql("ALTER TABLE items ALTER price TYPE text", "DELETE FROM items WHERE id = 2")
            shop.sql("INSERT INTO items VALUES (3, '3', 'green')")
        shop.replicate()
    assert [one["change"] for one in logs if "change" in one] == [
        "new column 'color'",
        "dropped column 'name'",
        "new type of column 'price'",
    ]
    assert shop.rows() == {
        "1": {"id": "1", "name": "one", "price": "1.00"},
        "3": {"id": "3", "price": "3", "color": "green"},
    }


def test_a_value_that_does_not_fit_stops_after_the_transactions_before_it(shop: Shop) -> None:
    class Item(Table, name="items"):
        id: PrimaryKey[int]
        count: int

    shop.sql("CREATE TABLE items (id int PRIMARY KEY, count numeric)")
    shop.sql("CREATE PUBLICATION shop FOR TABLE items")
    shop.db.create_table(Item)
    shop.replicate()
    for values in ("(1, 1)", "(2, 2.5)", "(3, 3)"):
        shop.sql(f"INSERT INTO items VALUES {values}")
    for _ in range(2):
        with pytest.raises(ReplicationStopped, match=r"row id='2' of public.items .*'count': '2.5' is no i"):
            shop.replicate()
        assert [one.id for one in shop.db.snapshot().select(Item)] == [1]


def test_a_transaction_over_the_limit_stops_after_the_transactions_before_it(shop: Shop) -> None:
    shop.items()
    shop.replicate()
    shop.sql("INSERT INTO items VALUES (1, 'one', 1)")
    shop.sql(f"INSERT INTO items SELECT n, {LARGE} FROM generate_series(2, 99) AS n")
    with pytest.raises(ReplicationStopped, match=r"more than 97.7 KiB .* raise --max-transaction"):
        shop.replicate(max_transaction=100_000)
    assert shop.rows().keys() == {"1"}
    shop.replicate()
    assert shop.rows() == shop.expected()


def test_a_filtered_publication_of_some_columns(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, secret text, "
        "twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO items SELECT n, 'n', 'x' FROM generate_series(1, 10) AS n",
        "CREATE PUBLICATION shop FOR TABLE items (id, name) WHERE (id > 5)",
    )
    shop.db.create_table("items")
    shop.replicate()
    shop.sql("INSERT INTO items VALUES (1000, 'n', 'x'), (-5, 'n', 'x')")
    shop.sql("UPDATE items SET id = 0 WHERE id = 6")
    shop.replicate()
    assert shop.rows() == {str(n): {"id": str(n), "name": "n"} for n in (7, 8, 9, 10, 1000)}


def test_partitions_of_a_table(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF items FOR VALUES FROM (10) TO (100)",
        "CREATE PUBLICATION shop FOR TABLE items WITH (publish_via_partition_root = true)",
        "INSERT INTO items VALUES (1, 'one'), (11, 'eleven')",
    )
    shop.db.create_table("items")
    shop.replicate()
    shop.sql("UPDATE items SET id = 20 WHERE id = 1", "INSERT INTO items VALUES (2, 'two')")
    shop.replicate()
    assert shop.rows() == shop.expected()
    shop.sql("TRUNCATE items", "INSERT INTO items VALUES (30, 'thirty')")
    shop.replicate()
    assert shop.rows() == shop.expected()


def test_tables_and_names_are_chosen(shop: Shop) -> None:
    cheese = '"Große Welt"."Käse ""1"""'
    shop.sql(
        'CREATE SCHEMA "Große Welt"',
        f'CREATE TABLE {cheese} ("Schlüssel" text PRIMARY KEY, "Wert 💡" text)',
        f"INSERT INTO {cheese} VALUES ('ä', 'ö')",
        "CREATE TABLE others (id int PRIMARY KEY)",
        f'CREATE PUBLICATION "Meine ""P""" FOR TABLE {cheese}, others',
    )
    shop.db.create_table("cheese")
    name = 'Große Welt.Käse "1"'
    given = {"publication": 'Meine "P"', "tables": {name: "cheese"}}
    assert shop.replicate(**given).tables == {name: "cheese"}
    shop.sql(f"UPDATE {cheese} SET \"Wert 💡\" = '🧀'", "INSERT INTO others VALUES (1)")
    assert shop.replicate(**given | {"tables": None}).transactions == 1
    assert shop.rows("cheese") == {"ä": {"Schlüssel": "ä", "Wert 💡": "🧀"}}
    with pytest.raises(ConfigurationError, match=r"replicates Große Welt.*=cheese: use another slot"):
        shop.replicate(**given | {"tables": {"public.others": "cheese"}})


def test_what_cannot_be_replicated(shop: Shop) -> None:
    class Item(Table, name="typed"):
        name: PrimaryKey[str]

    class Whole(Table, name="whole"):
        id: PrimaryKey[int]
        number: int

    shop.db.create_table(Whole)
    shop.sql("CREATE TABLE items (id int, name text)")
    with pytest.raises(ConfigurationError, match="has no publication 'shop': create one"):
        shop.replicate()
    shop.sql("CREATE PUBLICATION shop")
    with pytest.raises(ConfigurationError, match="has no tables"):
        shop.replicate()
    shop.sql("ALTER PUBLICATION shop ADD TABLE items")
    with pytest.raises(UnknownTable, match=r"no table 'items' .* name its chain"):
        shop.replicate()
    shop.db.create_table("items")
    shop.db.create_table(Item)
    with pytest.raises(ConfigurationError, match="no primary key"):
        shop.replicate()
    shop.sql("ALTER TABLE items ADD PRIMARY KEY (id)")
    with pytest.raises(
        ConfigurationError, match=r"whole needs a value for 'number', and public.items has no"
    ):
        shop.replicate(tables={"public.items": "whole"})
    with pytest.raises(ConfigurationError, match=r"may have the same key \(name\) of typed"):
        shop.replicate(tables={"public.items": "typed"})
    shop.sql("CREATE UNIQUE INDEX ON items (name)")
    with pytest.raises(ReplicationStopped, match=r"'name' .* REPLICA IDENTITY FULL"):
        shop.replicate(tables={"public.items": "typed"})
    with pytest.raises(ConfigurationError, match=r"no table public.nothing: it has public.items"):
        shop.replicate(tables={"public.nothing": "items"})
    shop.sql("INSERT INTO items VALUES (1, 'a')")
    with shop.db.transaction() as t:
        t.set("items", "own", "name", b"here before")
    with pytest.raises(ConfigurationError, match=r"items has rows, .* --overwrite"):
        shop.replicate()
    assert shop.rows() == {"own": {"name": "here before"}}
    assert shop.sql("SELECT * FROM pg_replication_slots WHERE slot_name = current_database()") == []
    assert shop.replicate(overwrite=True).deleted == 1
    assert shop.rows() == shop.expected()


def test_a_copy_that_does_not_fit_leaves_no_slot(shop: Shop) -> None:
    class Item(Table, name="items"):
        id: PrimaryKey[int]
        name: str

    shop.items("INSERT INTO items VALUES (1, NULL)")
    shop.db.drop_table("items")
    shop.db.create_table(Item)
    with pytest.raises(ReplicationStopped, match="'name': the value cannot be null"):
        shop.replicate()
    assert shop.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = current_database()") == []
    shop.sql("UPDATE items SET name = 'one'")
    assert shop.replicate().new == 1


def test_an_unknown_message_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown message b'S'"):
        Decoder(frozenset(), lambda _: {}).feed(b"S....")


def test_a_key_that_is_checked_at_the_commit_is_refused(shop: Shop) -> None:
    """An UPDATE that shifts all keys sends a row to a key that another row still has."""
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY DEFERRABLE, name text, price numeric(8,2))",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "CREATE PUBLICATION shop FOR TABLE items",
    )
    shop.db.create_table("items")
    with pytest.raises(ConfigurationError, match="no primary key, or a DEFERRABLE one"):
        shop.replicate()


def test_a_slot_keeps_its_publication(shop: Shop) -> None:
    shop.items("CREATE PUBLICATION other FOR TABLE items WHERE (id > 5)")
    shop.replicate()
    with pytest.raises(ConfigurationError, match="follows the publication 'shop'"):
        shop.replicate(publication="other")
    shop.sql("INSERT INTO items VALUES (1, 'a', 1)")
    assert shop.replicate().new == 1


def test_rows_that_a_policy_hides_are_not_left_out(shop: Shop) -> None:
    shop.items(
        "INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2)",
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON items USING (id = 1)",
        "DROP ROLE IF EXISTS plain_follower",
        "CREATE ROLE plain_follower LOGIN REPLICATION",
        "GRANT SELECT ON items TO plain_follower",
    )
    with pytest.raises(ConfigurationError, match="row-level security"):
        replicate(
            shop.db,
            f"{shop.conninfo} user=plain_follower",
            slot=shop.slot,
            publication="shop",
            once=True,
        )
    shop.sql("DROP OWNED BY plain_follower", "DROP ROLE plain_follower")


def test_after_an_unfinished_copy_the_rows_of_another_table_are_safe(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'a', 1)")
    shop.db.create_table("orders")
    with shop.db.transaction() as t:
        t.set("orders", "mine", "name", b"kept")
    state = SlotState("copying", 0, *identity_of(shop), "another", "shop")
    shop.db.create_table("replication", tablets=1)
    with shop.db.transaction() as t:
        t.set("replication", shop.slot, "position", state.to_bytes())
    with pytest.raises(ConfigurationError, match="orders has rows"):
        shop.replicate(tables={"public.items": "orders"})
    assert shop.db.snapshot().get("orders", "mine", "name") == b"kept"


def identity_of(shop: Shop) -> tuple[str, str]:
    with PostgreSQL(shop.conninfo, shop.slot) as server:
        return server.system, server.database
