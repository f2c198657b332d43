"""Records of a topic become rows, in each kind of table; what does not fit is put aside."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import Field

from percolator_core import PrimaryKey, Table, Unique
from percolator_core.errors import ConfigurationError, UnknownTable
from percolator_core.kafka import ConsumptionStopped, consume
from percolator_core.recipes import KafkaSink
from tests.kafka.conftest import Shop


class Item(Table, name="typed"):
    number: PrimaryKey[int]
    name: Unique[str | None] = None
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)] | None = None
    at: datetime | None = None


class Part(Table, name="parts"):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    name: str = ""


class Named(Table, name="named"):
    name: PrimaryKey[str]
    price: int | None = None


def test_inserts_updates_and_tombstones_of_several_partitions(shop: Shop) -> None:
    shop.send(*((f"k{n}", {"name": f"n{n}", "price": n}) for n in range(1000)))
    report = shop.consume()
    assert (report.read, report.new, report.behind) == (1000, 1000, 0)
    assert all(offset > 0 for offset in shop.offsets())
    assert sum(shop.offsets()) == 1000
    shop.send(*((f"k{n}", None) for n in range(100)), ("k200", {"name": "two"}), ("k300", {"name": None}))
    shop.send(("new", {"name": "new"}), ("k0", {"name": "again"}), ("none", None), ("k400", {"price": 400}))
    report = shop.consume()
    assert (report.new, report.changed, report.deleted, report.unchanged) == (2, 2, 100, 2)
    expected = {f"k{n}": {"name": f"n{n}", "price": str(n)} for n in range(100, 1000)}
    expected |= {"new": {"name": "new"}, "k0": {"name": "again"}}
    expected["k200"]["name"] = "two"
    del expected["k300"]["name"]
    assert shop.rows() == expected
    assert shop.consume().read == 0
    assert len(shop.db.history("items", "k400", "price")) == 1, "an equal cell was written"


def test_records_of_one_key_in_one_transaction(shop: Shop) -> None:
    shop.db.create_table(Item)
    shop.send(("1", {"name": "one", "price": 1}), ("2", {"name": "two"}), partition=0)
    shop.send(("1", {"name": "uno"}), ("2", {"name": "one"}), ("2", None), partition=0)
    shop.send(("1", None), ("1", {"name": "one"}), ("3", {"price": 3}), ("3", {"name": "x"}), partition=0)
    for table in ("items", "typed"):
        report = shop.consume(table, name=table)
        assert (report.read, report.bad) == (9, 0)
    assert shop.rows() == {"1": {"name": "one"}, "3": {"name": "x", "price": "3"}}
    found = [(one.number, one.name, one.price) for one in shop.db.snapshot().select(Item)]
    assert found == [(1, "one", None), (3, "x", 3)]


def test_typed_rows_and_their_keys(shop: Shop) -> None:
    for model in (Item, Part, Named):
        shop.db.create_table(model)
    shop.send(
        (None, {"number": 1, "name": "one", "price": 1.25, "at": "2025-06-01T12:00:00Z"}),
        ("2", {"name": "two"}),
        ('{"number": 3, "more": 1}', {"price": "7"}),
        ("east", {"number": 4}),
    )
    assert shop.consume("typed").new == 4
    shop.send(("2", None), ('{"number": 3}', None), ("5", None))
    report = shop.consume("typed")
    assert (report.deleted, report.unchanged) == (2, 1)
    found = {one.number: one for one in shop.db.snapshot().select(Item)}
    assert found.keys() == {1, 4}
    assert found[1] == Item(
        number=1, name="one", price=Decimal("1.25"), at=datetime(2025, 6, 1, 12, tzinfo=UTC)
    )
    other = Shop(shop.db, shop.url, shop.kafka, shop.kafka.topic())
    other.send(('{"shop": "east", "number": 1}', {"title": "x", "left": "out"}), partition=0)
    other.send(("any", {"shop": "east", "number": 2, "title": "y"}), partition=0)
    assert other.consume("parts", columns={"title": "name"}).new == 2
    other.send(('{"shop": "east", "number": 1}', None))
    assert other.consume("parts", columns={"title": "name"}).deleted == 1
    assert [(one.number, one.name) for one in shop.db.snapshot().select(Part)] == [(2, "y")]
    texts = Shop(shop.db, shop.url, shop.kafka, shop.kafka.topic())
    texts.send(("17", {"price": 1}), ('"quoted"', {"price": 2}), ("plain", {"price": 3}))
    assert texts.consume("named").new == 3
    assert {one.name for one in shop.db.snapshot().select(Named)} == {"17", "quoted", "plain"}


def test_a_value_of_any_bytes_in_one_column(shop: Shop) -> None:
    shop.send((b"\xff\x00", b"\x80{"), ("gone", b"x"), ("gone", None))
    assert shop.consume(column="value").read == 3
    assert list(shop.db.snapshot().scan("items")) == [(b"\xff\x00", {"value": b"\x80{"})]


@pytest.mark.parametrize(
    ("table", "key", "value", "reason"),
    [
        ("items", "k", b"{", "not JSON: "),
        ("items", "k", b"[1]", "not a JSON object, but a list"),
        ("items", "k", b'{"name": "\xff"}', "byte 10 is not UTF-8"),
        ("items", None, {"name": "x"}, "the row key is missing"),
        ("items", "", None, "the row key is empty"),
        ("typed", "1", {"colour": "red"}, "it has the field 'colour', and typed no such column"),
        ("typed", "1", {"price": 1.234}, "column 'price': "),
        ("parts", "1", {"shop": "a", "number": 2, "name": None}, "column 'name': the value cannot be null"),
        ("parts", "1", {"shop": "a", "number": 2}, "name"),
        ("typed", "one", {"price": 1}, "column 'number': 'one' is no int"),
        ("typed", None, None, "the record has no key"),
        ("typed", b"\xff", None, "the record's key is not UTF-8"),
        ("typed", '{"id": 1}', None, "column 'number': the value cannot be null"),
        ("typed", "2", {"name": "taken"}, "typed already has a row with name='taken'"),
        ("parts", "1", None, "the record's key is not a JSON object with the fields shop, number"),
    ],
)
def test_what_does_not_fit_is_put_aside(shop: Shop, table: str, key: Any, value: Any, reason: str) -> None:
    shop.db.create_table(Item)
    shop.db.create_table(Part)
    good: dict[str, list[tuple[Any, Any]]] = {
        "items": [("a", {"name": "a"}), ("b", {"name": "b"})],
        "typed": [("8", {"name": "taken"}), ("9", {})],
        "parts": [(None, {"shop": one, "number": 1, "name": ""}) for one in "ab"],
    }
    before, behind = good[table]
    shop.send(before, (key, value), behind, partition=2)
    report = shop.consume(table)
    assert (report.read, report.new, report.bad) == (3, 2, 1)
    [(row, why, kept_key, kept_value)] = shop.aside()
    assert row == f"2/{1:020}"
    assert reason in why
    assert (kept_key or b"") == (key.encode() if isinstance(key, str) else key or b"")
    assert (kept_value is None) == (value is None)
    if isinstance(value, bytes):
        assert kept_value == value
    assert shop.consume(table).read == 0


def test_too_many_bad_records_stop_it_before_anything_of_their_transaction(shop: Shop) -> None:
    shop.send(("a", {"name": "a"}), ("b", b"?"), partition=0)
    assert shop.consume(max_bad=1).bad == 1
    shop.send(("c", {"name": "c"}), ("d", b"?"), ("e", b"?"), partition=0)
    before = shop.offsets()
    with pytest.raises(
        ConsumptionStopped, match=r"at offset 4 of partition 0 of .*: not JSON.*; correct the"
    ):
        shop.consume(max_bad=1)
    assert (shop.offsets(), set(shop.rows()), len(shop.aside())) == (before, {"a"}, 1)
    assert shop.consume(max_bad=2).bad == 2
    assert set(shop.rows()) == {"a", "c"}


def test_what_cannot_be_used_is_refused(shop: Shop) -> None:
    shop.db.create_table(Item)
    for table, settings, kind, why in (
        ("nowhere", {}, UnknownTable, "there is no table 'nowhere'"),
        ("typed", {"column": "name"}, ConfigurationError, "typed is typed.*: leave --column out"),
        ("typed", {"columns": {"a": "b"}}, ConfigurationError, "typed has no column 'b'"),
        ("items", {"columns": {"a": "b"}, "column": "c"}, ConfigurationError, "name one"),
        ("items", {"name": "a/b"}, ConfigurationError, "a text without a slash, not 'a/b'"),
        (
            "items",
            {"settings": {"no.such": "x"}},
            ConfigurationError,
            'No such configuration property: "no.such"',
        ),
        ("items", {"max_bad": -1}, ValueError, "leave them out"),
        ("items", {"patience": 0.0}, ValueError, "leave them out"),
    ):
        with pytest.raises(kind, match=why):
            shop.consume(table, **settings)
    with pytest.raises(ConfigurationError, match=r"Kafka refuses the topic no-such-topic: .*Unknown topic"):
        consume(shop.db, shop.kafka.servers, "no-such-topic", "items", name="shop", once=True)
    shop.consume()
    with pytest.raises(
        ConfigurationError, match=r"writes .* into items: name that table, or use another name"
    ):
        shop.consume("typed")


def test_out_by_the_sink_and_in_again(shop: Shop) -> None:
    sink = KafkaSink(shop.kafka.producer, shop.topic)
    for sequence in range(20):
        sink.take(b"k%d" % (sequence % 7), sequence, b'{"n": %d}' % sequence)
    assert shop.consume().read == 20
    assert shop.rows() == {f"k{n}": {"n": str(n + 14 if n < 6 else 13)} for n in range(7)}
