"""Changes of tables, drawn by dice, each written down in the ledger."""

from __future__ import annotations

import dataclasses
import random
import time
import types
from collections.abc import Callable
from typing import Any, Final

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    LockTimeout,
    PrimaryKey,
    Range,
    StoreUnavailable,
    Table,
    UnknownColumn,
    UnknownTable,
)
from tests.attack.ledger import Ledger, Shape

LETTERS: Final = "abcdef"
"""With these row keys begin; all but the first one are where a table with ranges may be cut."""

_REQUIRED: Final = ("one", "two")
"""Columns that each table has at first; in a typed one they are never null."""

_ADDED: Final = ("three", "four", "five")
"""Columns that typed tables are given later."""

_RENAMED: Final = ("six", "seven", "eight")

_GIVE_UP: Final = 60.0
"""Seconds for which a change is made again that did not come to its end."""


def model_of(name: str, columns: tuple[str, ...], partition: list[Hash | Range]) -> type[Table]:
    """A model with these columns of bytes; those that a table was given later may be null."""
    annotations: dict[str, Any] = {"id": PrimaryKey[str], "kind": Indexed[int]}
    body: dict[str, Any] = {"__annotations__": annotations, "__module__": __name__}
    for column in columns:
        annotations[column] = bytes if column in _REQUIRED else bytes | None
        if column not in _REQUIRED:
            body[column] = None
    made = types.new_class(
        "Row", (Table,), {"name": name, "partition": partition}, lambda space: space.update(body)
    )
    assert issubclass(made, Table)
    return made


class Kept(Exception):
    """The library refused a change, as it may."""


class Changer:
    """Changes tables. Several may share a ledger, each with its own dice and client."""

    def __init__(self, ledger: Ledger, db: Database, dice: random.Random, most_ranges: int) -> None:
        """``most_ranges`` is how many ranges it adds at most."""
        self._ledger = ledger
        self._db = db
        self._dice = dice
        self._ranges_left = most_ranges
        self.most_tablets = 5
        self.before_retry: Callable[[], object] = lambda: time.sleep(0.02)

    def create(self, table: str, *, typed: bool | None = None, tablets: int | None = None) -> str:
        """Make a table that is not there, raw or typed; returns what was done."""
        dice = self._dice
        typed = dice.random() < 0.5 if typed is None else typed
        tablets = dice.randint(1, self.most_tablets) if tablets is None else tablets
        number = self._ledger.number(table)
        columns = {name: f"{name}#{number}" for name in _REQUIRED} if typed else {n: n for n in _REQUIRED}
        shape = Shape(f"{table}#{number}", typed, columns, tablets)
        what = f"create {shape}"
        if not typed:
            self._make(table, what, shape, lambda: self._db.create_table(table, tablets=tablets))
            return what
        partition: list[Hash | Range] = [Range("id", splits=[])]
        if tablets > 1:
            partition.insert(0, Hash("id", buckets=tablets))
        model = model_of(table, _REQUIRED, partition)
        self._make(table, what, shape, lambda: self._db.create_table(model))
        return what

    def drop(self, table: str) -> str:
        """Drop a table that is there."""
        what = f"drop {self._ledger.now(table)}"
        self._make(table, what, None, lambda: self._db.drop_table(table))
        return what

    def change(self, table: str) -> str:
        """Make some change of a table that is there, by dice; returns what was done."""
        shape = self._ledger.now(table)
        assert shape is not None
        kinds = [self._add_column, self._drop_column, self._rename_column] if shape.typed else [self._replace]
        if shape.typed:
            kinds += [self._replace]
            if self._ranges_left > 0 and len(shape.letters) < len(LETTERS):
                kinds += [self._add_range] * 2
        return self._dice.choice(kinds)(table, shape)

    # Inside.

    def _replace(self, table: str, shape: Shape) -> str:
        dropped = self.drop(table)
        return f"{dropped}, {self.create(table)}"

    def _add_column(self, table: str, shape: Shape) -> str:
        free = [name for name in _ADDED if name not in shape.columns]
        if not free:
            return self._drop_column(table, shape)
        name = self._dice.choice(free)
        columns = {**shape.columns, name: f"{name}#{self._ledger.number(table)}"}
        model = model_of(table, tuple(columns), [])
        new = dataclasses.replace(shape, columns=columns)
        what = f"add column {name} to {shape}"
        self._make(table, what, new, lambda: self._db.add_column(model, name))
        return what

    def _drop_column(self, table: str, shape: Shape) -> str:
        if len(shape.columns) < 2:
            return self._add_column(table, shape)
        name = self._dice.choice(sorted(shape.columns))
        columns = {known: identity for known, identity in shape.columns.items() if known != name}
        what = f"drop column {name} of {shape}"
        new = dataclasses.replace(shape, columns=columns)
        self._make(table, what, new, lambda: self._db.drop_column(table, name))
        return what

    def _rename_column(self, table: str, shape: Shape) -> str:
        old = self._dice.choice(sorted(shape.columns))
        new = self._dice.choice([name for name in _RENAMED if name not in shape.columns] or [""])
        if not new:
            return self._drop_column(table, shape)
        columns = {new if known == old else known: identity for known, identity in shape.columns.items()}
        what = f"rename column {old} to {new} of {shape}"
        changed = dataclasses.replace(shape, columns=columns)
        self._make(table, what, changed, lambda: self._db.rename_column(table, old, new))
        return what

    def _add_range(self, table: str, shape: Shape) -> str:
        self._ranges_left -= 1
        letter = LETTERS[len(shape.letters)]
        new = dataclasses.replace(shape, letters=shape.letters + letter)
        what = f"add range {letter} to {shape}"
        self._make(table, what, new, lambda: self._db.add_range(table, letter))
        return what

    def _make(self, table: str, what: str, shape: Shape | None, make: Callable[[], object]) -> None:
        """Make a change, again if it did not come to its end, and write it down."""
        change = self._ledger.begin(table, what, shape, self._timestamp())
        until = time.monotonic() + _GIVE_UP
        is_repeated = False
        while True:
            try:
                make()
            except ConfigurationError as error:
                self._ledger.refused(table, change)
                raise Kept(f"{what}: {error}") from error
            except (UnknownTable, UnknownColumn):
                if not is_repeated:
                    raise
                break  # another client has finished the drop or the new name
            except (LockTimeout, StoreUnavailable):
                if time.monotonic() > until:
                    raise
                self.before_retry()
                is_repeated = True
                continue
            break
        self._ledger.end(change, self._timestamp())

    def _timestamp(self) -> int:
        until = time.monotonic() + _GIVE_UP
        while True:
            try:
                return self._db.timestamp()
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
