"""Models that say more than their columns do, times with a summer time, and calls that are nearly right."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from percolator_core import Database, Indexed, PrimaryKey, Table, Unique, UnknownColumn
from tests.tables.models import create


class Frozen(Table, name="frozen"):
    model_config = ConfigDict(frozen=True)

    id: PrimaryKey[int] = Field(frozen=True)
    n: int = 0


class Span(Table, name="spans"):
    id: PrimaryKey[int]
    low: int
    high: int
    name: str = ""
    parent: Span | None = None

    @field_validator("name")
    @classmethod
    def loud(cls, name: str) -> str:
        return name.upper()

    @model_validator(mode="after")
    def in_order(self) -> Span:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class Crossed(Table, name="crossed"):
    """Each field goes by the other one's name."""

    id: PrimaryKey[int]
    a: int = Field(0, alias="b")
    b: int = Field(0, alias="a")


class Named(Table, name="named"):
    """Fields that are called as arguments are."""

    cls: PrimaryKey[str]
    self: PrimaryKey[str]
    row: int = 0
    table: int = 0
    where: int = 0
    values: int = 0


def test_values_are_checked_alone_when_a_row_is_updated_by_values(db: Database) -> None:
    create(db, Frozen, Span)
    db.run(lambda t: t.insert(Frozen(id=1, n=1)))
    db.run(lambda t: t.update(Frozen, id=1, n=2))
    assert db.snapshot().find(Frozen, id=1) == Frozen(id=1, n=2)
    db.run(lambda t: t.insert(Span(id=1, low=3, high=4)))
    db.run(lambda t: t.update(Span, id=1, high=9, name="loud"))
    assert db.snapshot().find(Span, id=1) == Span(id=1, low=3, high=9, name="LOUD")
    with pytest.raises(ValidationError, match="high"):
        db.run(lambda t: t.update(Span, id=1, high="tall"))
    with pytest.raises(UnknownColumn, match="hihg"):
        db.run(lambda t: t.update(Span, id=1, hihg=3))


def test_fields_are_read_by_their_own_names(db: Database) -> None:
    create(db, Crossed, Named)
    crossed = Crossed.model_validate({"id": 1, "b": 10, "a": 20})
    assert (crossed.a, crossed.b) == (10, 20)
    db.run(lambda t: t.insert(crossed))
    assert db.snapshot().find(Crossed, id=1) == crossed
    row = Named(cls="c", self="s", row=1, table=2, where=3, values=4)
    db.run(lambda t: t.insert(row))
    assert db.snapshot().find(Named, cls="c", self="s") == row
    (part,) = db.snapshot().select(Named, (Named.cls == "c") & (Named.row == 1), columns=["where", "row"])
    assert part.__dict__ == {"row": 1, "where": 3}
    assert list(part.__dict__) == ["row", "where"]


def test_a_model_is_made_again_after_an_indexed_column_was_renamed(db: Database) -> None:
    class Before(Table, name="things"):
        id: PrimaryKey[int]
        kind: Indexed[int] = 0

    class After(Table, name="things"):
        id: PrimaryKey[int]
        sort: Indexed[int] = 0

    class Other(Table, name="things"):
        id: PrimaryKey[int]
        sort: Unique[int] = 0

    db.create_table(Before)
    db.rename_column(Before, "kind", "sort")
    db.create_table(After)
    db.run(lambda t: t.insert(After(id=1, sort=3)))
    assert [row.id for row in db.snapshot().select(After, After.sort == 3)] == [1]
    with pytest.raises(Exception, match=r"an index of sort and .* a unique index of sort"):
        db.create_table(Other)


@pytest.mark.parametrize("zone", ["Europe/London", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("month", [1, 7])
def test_a_moment_is_the_same_in_every_zone(db: Database, zone: str, month: int) -> None:
    at = datetime(2024, month, 1, 12, 30, tzinfo=ZoneInfo(zone))
    found = [db.snapshot(one).start_timestamp for one in (at, at.astimezone(UTC))]
    assert found == [int(at.timestamp()) * 1_000_000] * 2


def test_what_is_nearly_right_is_told_in_a_sentence(db: Database) -> None:
    create(db, Frozen)
    with pytest.raises(TypeError, match=r"write \['id'\]"):
        db.snapshot().select(Frozen, columns="id")
    for at in ("2020", 1.5, True):
        with pytest.raises(TypeError, match="at is a timestamp"):
            db.snapshot(at=at)  # type: ignore[arg-type]
