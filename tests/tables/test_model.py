"""Models of tables: what becomes of their fields, values there and back, and tables of another version."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NaiveDatetime, SecretStr, ValidationError

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PrimaryKey,
    Range,
    Table,
    Unique,
    UnknownColumn,
)
from percolator_core.schema.definitions import Column, HashRule, IndexRule, RangeRule, TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.tables.model import definition_of
from tests.tables.models import Colour, Rank, create

Euro = NewType("Euro", Decimal)


class Word(str):
    """A kind of str."""

    __slots__ = ()


class Level(StrEnum):
    top = "top"
    none = ""


class Mixed(Enum):
    one = 1
    two = "two"


class Point(BaseModel):
    x: int
    y: list[int] | None = None


class Everything(Table, name="everything", partition=[Hash("key", buckets=2)]):
    key: PrimaryKey[int]
    truth: bool | None = None
    whole: int | None = None
    real: float | None = None
    text: str | None = None
    raw: bytes | None = None
    moment: datetime | None = None
    aware: AwareDatetime | None = None
    day: date | None = None
    plain_decimal: Decimal | None = None
    price: Annotated[Decimal, Field(max_digits=10, decimal_places=2)] | None = None
    id: UUID | None = None
    colour: Colour | None = None
    rank: Rank | None = None
    level: Level | None = None
    mixed: Mixed | None = None
    choice: Literal["a", "b"] | None = None
    number: Literal[1, 2] | None = None
    with_none: Literal["a", None] = None  # noqa: PYI061 - is the same
    tags: list[str] | None = None
    by_name: dict[str, float] | None = None
    point: Point | None = None
    points: tuple[Point, ...] | None = None
    either: int | str | None = None
    anything: Any = 0


TYPES = {
    "key": "int",
    "truth": "bool",
    "whole": "int",
    "real": "float",
    "text": "str",
    "raw": "bytes",
    "moment": "datetime",
    "aware": "datetime",
    "day": "date",
    "plain_decimal": "decimal(38,18)",
    "price": "decimal(10,2)",
    "id": "uuid",
    "colour": "str",
    "rank": "int",
    "level": "str",
    "mixed": "json",
    "choice": "str",
    "number": "int",
    "with_none": "str",
    "tags": "json",
    "by_name": "json",
    "point": "json",
    "points": "json",
    "either": "json",
    "anything": "json",
}

VALUES: list[tuple[str, Any]] = [
    ("truth", False),
    ("truth", True),
    ("whole", -(2**63)),
    ("whole", 2**63 - 1),
    ("real", -math.inf),
    ("real", 5e-324),
    ("text", ""),
    ("text", "\0 ä \U0001f600"),
    ("raw", b""),
    ("raw", bytes(range(256))),
    ("moment", datetime(1, 1, 1, tzinfo=UTC)),
    ("moment", datetime(2026, 3, 29, 2, 30, 1, 999999, timezone(timedelta(hours=-5)))),
    ("aware", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("day", date.min),
    ("day", date.max),
    ("plain_decimal", Decimal("-12345678901234567890.123456789012345678")),
    ("price", Decimal("99999999.99")),
    ("price", Decimal("-0.01")),
    ("id", UUID(int=0)),
    ("id", UUID(int=2**128 - 1)),
    ("colour", Colour.blue),
    ("rank", Rank.high),
    ("level", Level.none),
    ("mixed", Mixed.one),
    ("mixed", Mixed.two),
    ("choice", "b"),
    ("number", 2),
    ("with_none", "a"),
    ("tags", []),
    ("tags", ["", "\0", "x" * 1000]),
    ("by_name", {"": 0.5, "ä": -1e300}),
    ("point", Point(x=1, y=[2, 3])),
    ("points", (Point(x=1), Point(x=2, y=[]))),
    ("either", 1),
    ("either", "1"),
    ("anything", {"deep": [1, None, {"er": True}]}),
]


def test_each_annotation_has_its_type() -> None:
    columns = definition_of(Everything).columns
    assert {column.name: column.type for column in columns} == TYPES
    assert [column.name for column in columns if not column.nullable] == ["key", "anything"]


def test_every_value_comes_back_as_it_was(db: Database) -> None:
    create(db, Everything)
    rows = [Everything(key=number, **{name: value}) for number, (name, value) in enumerate(VALUES)]
    assert {name for name, _ in VALUES} | {"key"} == set(TYPES)
    with db.transaction() as t:
        for row in rows:
            t.insert(row)
        assert list(t.select(Everything)) == rows, "own writes, too"
    found = list(db.snapshot().select(Everything))
    assert found == rows
    for row, (name, value) in zip(found, VALUES, strict=True):
        assert type(row[name]) is type(value)
        assert db.snapshot().find(Everything, key=row.key) == row
        by_name = db.snapshot().find("everything", key=row.key)
        assert by_name is not None
        assert by_name[name] is not None
    assert found[11].moment is not None
    assert found[11].moment.tzinfo is UTC


def test_a_nan_comes_back(db: Database) -> None:
    create(db, Everything)
    with db.transaction() as t:
        t.insert(Everything(key=1, real=math.nan))
    found = db.snapshot().find(Everything, key=1)
    assert found is not None
    assert found.real is not None
    assert math.isnan(found.real)


class Keyed(
    Table, name="keyed", partition=[Hash("colour", buckets=2), Range("at", splits=[date(2026, 1, 1)])]
):
    """All that can be in a key is found by it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    colour: PrimaryKey[Colour]
    rank: PrimaryKey[Rank]
    at: PrimaryKey[date]
    word: PrimaryKey[Word]
    euro: PrimaryKey[Annotated[Euro, Field(max_digits=6, decimal_places=2)]]
    id: PrimaryKey[UUID]
    note: Word | None = None


def test_keys_of_any_type(db: Database) -> None:
    create(db, Keyed)
    key: dict[str, Any] = {
        "colour": Colour.red,
        "rank": Rank.low,
        "at": date(2025, 12, 31),
        "word": Word("a\0"),
        "euro": Decimal("-1.50"),
        "id": UUID(int=7),
    }
    with db.transaction() as t:
        t.insert(Keyed(**key, note=Word("x")))
        t.insert(Keyed(**key | {"at": date(2026, 1, 1)}))
    found = db.snapshot().find(Keyed, **key)
    assert found is not None
    assert {name: found[name] for name in key} == key
    assert (type(found.word), type(found.note), type(found.colour)) == (Word, Word, Colour)
    assert Keyed.key_of(Keyed.row_key(**key)) == key
    plain = key | {"colour": "red", "rank": 1}
    assert db.snapshot().find("keyed", **plain) == plain | {"note": "x"}
    assert [row.at.year for row in db.snapshot().select(Keyed)] == [2025, 2026]


def test_a_definition_has_it_all() -> None:
    class Parent(Table):
        tenant: PrimaryKey[str]

    class Child(
        Parent,
        name="children",
        partition=[Hash("tenant", buckets=3), Hash("number", buckets=2), Range("number", splits=[0, 10])],
        notify_only=["dirty"],
    ):
        number: PrimaryKey[int]
        city: Indexed[str] | None = None
        badge: Unique[int] = 0

    assert definition_of(Child) == TableDefinition(
        "children",
        18,
        ("dirty",),
        columns=(
            Column("tenant", "str"),
            Column("number", "int"),
            Column("city", "str", nullable=True),
            Column("badge", "int"),
        ),
        key=("tenant", "number"),
        hashes=(HashRule(("tenant",), 3), HashRule(("number",), 2)),
        ranges=RangeRule(
            "number", tuple(column_type("int").encode(split) for split in (0, 10)), numbers=(0, 1, 2)
        ),
        indexes=(IndexRule("city", False, "children(city)"), IndexRule("badge", True, "children(badge)")),
    )
    with pytest.raises(ConfigurationError, match="Parent has no name, so it is no table"):
        definition_of(Parent)


# What no table can be made of.

KEY: Any = PrimaryKey
INDEXED: Any = Indexed


def made(fields: dict[str, Any], **arguments: Any) -> None:
    body = {"__annotations__": fields, "__module__": __name__}
    make: Any = type(Table)
    definition_of(make("Made", (Table,), body, **{"name": "made"} | arguments))


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        ({"a": int}, {}, "table 'made': no column is its key: declare one as PrimaryKey[…]"),
        ({"a": KEY[int | None]}, {}, "Made.a: a column of the key cannot be null: leave out None"),
        ({"a": KEY[list[int]]}, {}, "Made.a: JSON values have no order"),
        ({"a": PrimaryKey[int], "b": Indexed[Point]}, {}, "Made.b: JSON values have no order"),
        (
            {"a": KEY[INDEXED[int]]},
            {},
            "Made.a: use one of PrimaryKey, Indexed and Unique, not 2",
        ),
        ({"a": PrimaryKey[int], "b": NaiveDatetime}, {}, "Made.b: a time without a time zone"),
        ({"a": PrimaryKey[int], "b": Annotated[Decimal, Field(max_digits=39)]}, {}, "Made.b: decimal(39,0)"),
        ({"a": PrimaryKey[int]}, {"partition": [Hash("b", buckets=2)]}, "uses 'b', which is no column of"),
        ({"a": PrimaryKey[int]}, {"partition": [Hash("a", buckets=0)]}, "buckets is 1 to 4096, not 0"),
        ({"a": PrimaryKey[int]}, {"partition": [Hash("a", buckets=5000)]}, "buckets is 1 to 4096, not 5000"),
        ({"a": PrimaryKey[int]}, {"partition": [Range("b")]}, "Range('b', splits=[]) uses 'b', which is"),
        (
            {"a": PrimaryKey[int]},
            {"partition": [Range("a", ["x"])]},
            "Range('a', splits=['x']): 'x' is no int",
        ),
        (
            {"a": PrimaryKey[int]},
            {"partition": [Range("a", [2, 1])]},
            "the splits of Range('a') do not ascend",
        ),
        ({"a": PrimaryKey[int]}, {"partition": [Range("a"), Range("a")]}, "at most one Range(…)"),
        (
            {"a": PrimaryKey[int]},
            {"partition": [Range("a"), Hash("a", buckets=2)]},
            "the Range(…) of a partition comes last",
        ),
        ({"a": PrimaryKey[int]}, {"partition": ["a"]}, "partition is a list of Hash(…), and at most one"),
        ({"a": PrimaryKey[int]}, {"notify_only": ["a"]}, "'a' holds data, so it cannot be notify-only"),
        ({"a": PrimaryKey[int]}, {"name": ""}, "table ''"),
    ],
)
def test_models_that_are_no_tables(fields: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        made(fields, **arguments)


def test_a_column_that_a_model_lacks_is_named_with_those_that_it_has() -> None:
    class Tea(Table, name="teas"):
        id: PrimaryKey[int]
        price: float = 0.0

    with pytest.raises(AttributeError, match="Tea has no column 'prise': it has id, price"):
        Tea.prise  # noqa: B018 - it raises


def test_a_model_is_asked_for_its_definition_once() -> None:
    assert definition_of(Everything) is definition_of(Everything)
    with pytest.raises(TypeError, match="is no table: give a subclass of"):
        definition_of(Point)  # type: ignore[arg-type]


# Instances.


class Page(Table, name="pages"):
    url: PrimaryKey[str]
    rank: float = 0.0
    tags: list[str] = []  # noqa: RUF012 - a field
    title: Annotated[str, Field(max_length=5)] | None = None
    secret: SecretStr | None = None


def test_what_the_model_refuses_is_refused_when_the_row_is_made_or_changed() -> None:
    page = Page(url="a")
    with pytest.raises(ValidationError):
        page.title = "too long"
    with pytest.raises(ValidationError):
        Page(url="a", rank="high")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Page(url="a", colour="red")  # type: ignore[call-arg]


def test_what_was_put_past_the_model_is_named_when_it_is_written(db: Database) -> None:
    create(db, Page)
    page = Page(url="a", tags=["x"])
    for tags in ([math.nan], [object()], {1, 2}):
        page.__dict__["tags"] = tags
        with pytest.raises(ValueError, match="pages, row url='a': tags: "), db.transaction() as t:
            t.insert(page)
    page = Page(url="a", secret=SecretStr("x"))
    message = r"pages, row url='a': secret: .* restored"
    with pytest.raises(ValueError, match=message), db.transaction() as t:
        t.insert(page)
    del page.__dict__["rank"]
    page.secret = None
    with (
        pytest.raises(ValueError, match="pages, row url='a': rank: the value is missing"),
        db.transaction() as t,
    ):
        t.insert(page)
    assert list(db.snapshot().select(Page)) == []


def test_a_row_read_in_part_has_no_more_and_updates_no_more(db: Database) -> None:
    create(db, Page)
    with db.transaction() as t:
        t.insert(Page(url="a", rank=1.0, tags=["x"], title="T"))
    (part,) = db.snapshot().select(Page, columns=["url", "rank"])
    with pytest.raises(AttributeError):
        part.title  # noqa: B018
    part.rank = 2.0
    with db.transaction() as t:
        t.update(part)
        with pytest.raises(ValueError, match="pages, row url='a': tags: the value is missing"):
            t.upsert(part)
    assert db.snapshot().find(Page, url="a") == Page(url="a", rank=2.0, tags=["x"], title="T")


def test_a_row_that_was_read_goes_into_another_table_s_place(db: Database) -> None:
    """Fields that were read do not count as set, but a new row is written with all of them."""
    create(db, Page)
    with db.transaction() as t:
        t.insert(Page(url="a", rank=1.0, title="T"))
    found = db.snapshot().find(Page, url="a")
    assert found is not None
    found.url = "b"
    with db.transaction() as t:
        t.insert(found)
    assert db.snapshot().find(Page, url="b") == Page(url="b", rank=1.0, title="T")


# A model and a table of different versions.

OLD = TableDefinition(
    "pages",
    2,
    columns=(
        Column("url", "str"),
        Column("rank", "float", stored="score"),
        Column("tags", "json"),
        Column("title", "str", nullable=True),
        Column("secret", "json", nullable=True),
    ),
    key=("url",),
    hashes=(HashRule(("url",), 2),),
)
NEW = OLD.with_(
    columns=(
        *OLD.columns,
        Column("lang", "str", nullable=True),
        Column("visits", "int", missing=column_type("int").encode(7)),
    )
)


def table(db: Database, definition: TableDefinition) -> None:
    db.schema_changes.create(definition)


def test_an_old_model_and_a_table_with_more_columns(db: Database) -> None:
    table(db, NEW)
    with db.transaction() as t:
        t.insert(Page(url="a", rank=1.0))
        t.upsert("pages", url="b", rank=2.0, tags=[], title=None, secret=None, lang="en", visits=1)
    with db.transaction() as t:
        t.upsert(Page(url="b", rank=3.0, tags=["x"], title="T", secret=None))
        found = t.find(Page, url="b")
        assert found == Page(url="b", rank=3.0, tags=["x"], title="T")
    more = list(db.snapshot().select("pages", columns=["rank", "lang", "visits"]))
    assert more == [{"rank": 1.0, "lang": None, "visits": 7}, {"rank": 3.0, "lang": "en", "visits": 1}]
    with db.transaction() as t:
        assert t.remove(Page, url="b")
        t.insert(Page(url="b"))
    again = db.snapshot().find("pages", url="b")
    assert again is not None
    assert (again["lang"], again["visits"]) == (None, 7)
    assert [row["url"] for row in db.snapshot().select("pages", where=VISITS == 7)] == ["a", "b"]


class Visited(Table):
    visits: int = 0


VISITS: Any = Visited
VISITS = VISITS.visits


def changed(**changes: Any) -> Callable[[Column], Column]:
    from dataclasses import replace

    return lambda column: replace(column, **changes)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (
            OLD.with_(columns=OLD.columns[:-1]),
            "has no column 'secret', which the model has: this program and the table are of different vers",
        ),
        (
            OLD.with_(columns=(OLD.columns[0], Column("rank", "int"), *OLD.columns[2:])),
            "has the type int, but the model has float: this program and the table are of",
        ),
        (
            OLD.with_(columns=(*OLD.columns[:3], Column("title", "str"), OLD.columns[4])),
            "column 'title' of table 'pages' may not be null, but in the model it may",
        ),
        (
            OLD.with_(columns=(OLD.columns[0], Column("rank", "float", nullable=True), *OLD.columns[2:])),
            "column 'rank' of table 'pages' may be null, but in the model it may not",
        ),
        (OLD.with_(key=("url", "rank")), "has the key url, rank, the model url"),
    ],
)
def test_a_model_that_does_not_fit_is_told_so(
    db: Database, definition: TableDefinition, message: str
) -> None:
    table(db, definition)
    for call in (
        lambda: db.snapshot().find(Page, url="a"),
        lambda: db.snapshot().select(Page),
        lambda: db.begin().insert(Page(url="a")),
        lambda: db.begin().remove(Page, url="a"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            call()


def test_a_model_with_an_index_that_the_table_lacks(db: Database) -> None:
    class Found(Table, name="found"):
        id: PrimaryKey[int]
        city: Indexed[str]

    definition = definition_of(Found)
    table(db, definition.with_(indexes=()))
    with pytest.raises(
        ConfigurationError, match=r"does not have the model's index of 'city' \(an index\): this"
    ):
        db.snapshot().find(Found, id=1)


def test_columns_and_values_that_are_none(db: Database) -> None:
    create(db, Page)
    with pytest.raises(UnknownColumn, match="pages has no column 'lang': it has url, rank, tags, title, sec"):
        db.snapshot().select(Page, columns=["lang"])
    with db.transaction() as t, pytest.raises(UnknownColumn, match="'lang'"):
        t.update("pages", url="a", lang="en")
