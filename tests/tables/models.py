"""Models that several files of tests use."""

from __future__ import annotations

from enum import Enum, IntEnum

from percolator_core import Database, Hash, Indexed, PrimaryKey, Table, Unique


class Colour(Enum):
    red = "red"
    blue = "blue"


class Rank(IntEnum):
    low = 1
    high = 9


class User(Table, name="users", partition=[Hash("name", buckets=4)]):
    """With an index that is not unique, and one that is; every value may be null."""

    name: PrimaryKey[str]
    city: Indexed[str | None] = None
    email: Unique[str | None] = None
    age: int | None = None


class Seat(Table, name="seats", partition=[Hash("hall", buckets=3)]):
    """A composite key, and indexed columns of a fixed and of any width."""

    hall: PrimaryKey[str]
    number: PrimaryKey[int]
    level: Indexed[int] = 0
    guest: Indexed[bytes | None] = None
    note: str = ""


def create(db: Database, *models: type[Table]) -> None:
    for model in models:
        db.create_table(model)
