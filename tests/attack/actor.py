"""One who attacks: makes steps, each drawn by the dice of a seed, and remembers what it saw.

What an actor does follows from the seed and its name alone, as far as it is not refused.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from percolator_core import (
    Database,
    LockTimeout,
    PercolatorError,
    RowExists,
    RowNotFound,
    StoreUnavailable,
)
from percolator_core.schema.predicates import ColumnExpression
from tests.attack.changes import Changer, Kept
from tests.attack.ledger import Shape
from tests.attack.session import Session
from tests.attack.views import KINDS, View

if TYPE_CHECKING:
    from tests.attack.attack import Attack

WEIGHTS: Final = {
    "begin": 20,
    "read": 40,
    "scan": 6,
    "go_on": 10,
    "finish": 16,
    "write": 12,
    "change": 8,
    "collect": 1,
}
"""How often each kind of step is drawn."""

_MOST: Final = 30
_AFTERWARDS: Final = 30


class Actor(Session):
    """One that makes steps. Not for several threads."""

    def __init__(
        self,
        attack: Attack,
        name: str,
        dbs: Sequence[Database],
        *,
        tables: Sequence[str] = (),
        ranges: int = 2,
        weights: dict[str, int] | None = None,
        rows: int = 8,
        bulk: int = 30,
    ) -> None:
        """``weights`` say how often each kind of step is drawn; ``rows`` are those of a letter.

        ``bulk`` is how long payloads are, in bytes.
        """
        super().__init__(attack, name, tables)
        self._dbs = dbs
        self._dice = random.Random(f"{attack.seed}/{name}")
        self._changer = Changer(attack.ledger, dbs[0], random.Random(f"{attack.seed}/{name}/changes"), ranges)
        self._weights = weights or WEIGHTS
        self._rows = rows
        self._bulk = bulk
        self.refused = 0
        """Nested uses that were refused."""

    @property
    def changer(self) -> Changer:
        """The object that changes tables for the actor."""
        return self._changer

    @property
    def databases(self) -> Sequence[Database]:
        """Its clients."""
        return self._dbs

    @property
    def views(self) -> Sequence[View]:
        """The open views of the actor."""
        return self._views

    def run(self, steps: int, over: Callable[[], bool] = lambda: True, *, end: bool = True) -> None:
        """Make ``steps`` steps; then, with ``end``, close what is open and read everything once more.

        While ``over`` returns False it goes on, up to `_MOST` times ``steps``. If ``over`` was False at
        first, at least `_AFTERWARDS` steps follow once it returns True.
        """
        kinds, weights = zip(*self._weights.items(), strict=True)
        beside = not over()
        made, most = 0, _MOST * steps
        try:
            while made < steps or (made < most and not over()):
                made += 1
                if beside and over():
                    made, beside = min(made, steps - _AFTERWARDS), False
                (kind,) = self._dice.choices(kinds, weights)
                self._note(kind)
                self._step_or_miss(getattr(self, kind))
            if end:
                self._note("end")
                self._step_or_miss(self.end)
        except Exception:  # noqa: BLE001 - reported with the seed and the step
            self._complain(traceback.format_exc(limit=-12))

    def _step_or_miss(self, step: Callable[[], object]) -> None:
        """A step; where servers fail over it may come to nothing."""
        try:
            step()
        except (StoreUnavailable, LockTimeout):
            if not self._attack.disturbed:
                raise

    def nested(self, number: int) -> None:
        """One short use, in the middle of somebody else's: a few reads, or a commit, begun and ended."""
        self._note(f"nested {number}")
        try:
            if self._dice.random() < 0.5:
                self.write()
            else:
                self.begin()
                self.read()
                self.finish()
        except PercolatorError:
            self.refused += 1
        for view in list(self._views):
            self._abandon(view)

    def fill(self, table: str, letters: str) -> None:
        """Write all rows of some letters of a table that is new, or of a range that is."""
        shape = self._ledger.now(table)
        assert shape is not None

        def put(view: View) -> None:
            for row in self._keys(letters):
                view.put_row(table, row, shape, self._payload())

        self._transact(self._dbs[0], put)

    # Steps.

    def begin(self) -> None:
        """Open a transaction or a snapshot, and leave it for later."""
        db = self._dice.choice(self._dbs)
        kind = self._dice.choice(["transaction", "transaction", "fixed", "snapshot", "pinned", "past"])
        self._attack.tokens.append(db.timestamp())
        token = self._attack.token(self._dice) if kind == "past" else 0
        if kind in {"snapshot", "pinned"}:
            self._open(View(db.snapshot, self.name, self._next(), pinned=kind == "pinned"))
        elif token:
            self._open(View(partial(db.snapshot, token), self.name, self._next(), past=True))
        else:
            view = View(db.begin, self.name, self._next())
            self._open(view)
            if kind == "fixed":
                assert view.start_timestamp

    def read(self) -> None:
        """Read in a view that is open, by any of the ways there are."""
        if not self._views:
            self.begin()
        view = self._dice.choice(self._views)
        chosen = self._dice.sample(self._tables, min(len(self._tables), self._dice.randint(1, 2)))
        for table in chosen:
            shape = self._ledger.now(table)
            if shape is not None and view in self._views:
                self._try(view, table, partial(self._read, view, table, shape))

    def scan(self) -> None:
        """Begin a scan or select, and take a few rows of it."""
        view, table = self._some_view(), self._dice.choice(self._tables)
        shape = self._ledger.now(table)
        if shape is None:
            return

        def open_scan() -> None:
            found = view.open_scan(table, shape, self._dice)
            if found.take(self._dice.choice([1, 3, 10])):
                self._scans.append(found)

        self._try(view, table, open_scan)

    def go_on(self) -> None:
        """Take more rows of a scan that is open, or all of them."""
        if not self._scans:
            self.scan()
            return
        found = self._dice.choice(self._scans)
        count = self._dice.choice([5, None, None])

        def take() -> None:
            if not found.take(count):
                self._scans.remove(found)

        self._try(found.view, found.table, take)

    def finish(self) -> None:
        """End a view; a transaction mostly commits what it derives from its reads."""
        if not self._views:
            return
        view = self._dice.choice(self._views)
        self._shut(view, commit=self._dice.random() < 0.8)

    def write(self) -> None:
        """Commit a transaction that writes to several tables at once, to old and to new tablets."""

        def put(view: View) -> None:
            for table in self._tables:
                self._derive(view, table)

        self._transact(self._dice.choice(self._dbs), put)

    def change(self) -> None:
        """Change a table, and fill what is new."""
        table = self._dice.choice(self._tables)
        with self._ledger.hold(table) as mine:
            if not mine:
                return
            before = self._ledger.now(table)
            try:
                done = self._changer.create(table) if before is None else self._changer.change(table)
            except Kept as kept:
                done = f"refused: {kept}"
            self._attack.latest.append(f"  {self.at}: {done}")
            after = self._ledger.now(table)
            if after is None:
                return
            same = before is not None and before.incarnation == after.incarnation
            new = after.letters[len(before.letters) :] if same and before is not None else after.letters
            if new:
                self.fill(table, new)
            self._attack.tokens += [self._dbs[0].timestamp() for _ in range(3)]

    def collect(self) -> None:
        """Collect garbage, and keep little."""
        self._attack.collected_at = self._attack.collected_at or time.monotonic()
        try:
            self._dbs[0].collect_garbage(timedelta(seconds=self._dice.choice([0.0, 0.5])))
        except (LockTimeout, StoreUnavailable):
            pass  # somebody is committing

    def end(self) -> None:
        """End all that is open, and read all tables with each client."""
        for found in list(self._scans):
            self._try(found.view, found.table, partial(found.take, None))
        self._scans.clear()
        for view in list(self._views):
            self._shut(view, commit=True)
        for db in self._dbs:
            for table in self._tables:
                shape = self._ledger.now(table)
                if shape is not None:
                    view = self._open(View(db.begin, self.name, self._next()))
                    self._try(view, table, partial(self._read_all, view, table, shape))
                    if view in self._views:
                        self._shut(view, commit=False)

    # Inside.

    def _read(self, view: View, table: str, shape: Shape) -> None:
        dice, row = self._dice, self._row(shape)
        if not shape.typed:
            columns = sorted(shape.columns)
            way = dice.choice(["get", "get_many", "get_row", "scan", "prefix"])
            if way == "get":
                view.get(table, row, dice.choice(columns))
            elif way == "get_many":
                view.get_many([(table, self._row(shape), column) for column in columns])
            elif way == "get_row":
                view.get_row(table, row)
            else:
                view.scan(table, prefix=row[:1] if way == "prefix" else None)
            return
        way = dice.choice(["find", "find", "select", "index"])
        if way == "find":
            view.find(table, row)
        elif way == "select":
            self._read_all(view, table, shape)
        else:
            kind = dice.randrange(KINDS)
            where = ColumnExpression("kind") == kind
            view.find_by_kind(table, where, kind, self._keys(shape.letters))

    def _read_all(self, view: View, table: str, shape: Shape) -> None:
        if shape.typed:
            view.open_scan(table, shape, _Plain()).take(None)
        else:
            view.scan(table)

    def _derive(self, view: View, table: str) -> None:
        """Write a cell of a table, or remove or add a row."""
        shape = self._ledger.now(table)
        if shape is None:
            return
        row = self._row(shape, newest=self._dice.random() < 0.5)
        way = self._dice.random()
        if way < 0.1:
            view.remove_row(table, row, shape)
        elif way < 0.2:
            try:
                view.put_row(table, row, shape, self._payload())
            except RowExists:
                pass
        else:
            try:
                view.change_cell(table, row, shape, self._dice.choice(sorted(shape.columns)), self._payload())
            except RowNotFound:
                pass

    def _shut(self, view: View, *, commit: bool) -> None:
        self._views.remove(view)
        for found in [one for one in self._scans if one.view is view]:
            found.note()
            self._scans.remove(found)
        if not (commit and view.writable):
            view.close()
            self._keep(view, "ok" if not view.wrote else "fail")
            return
        self._commit(view, lambda: self._derive(view, self._dice.choice(self._tables)))

    def _some_view(self) -> View:
        if not self._views:
            self.begin()
        return self._dice.choice(self._views)

    def _keys(self, letters: str) -> list[bytes]:
        return [f"{letter}{number:04}".encode() for letter in letters for number in range(self._rows)]

    def _row(self, shape: Shape, *, newest: bool = False) -> bytes:
        letter = shape.letters[-1] if newest else self._dice.choice(shape.letters)
        return f"{letter}{self._dice.randrange(self._rows):04}".encode()

    def _payload(self) -> bytes:
        return b"%030d" % self._dice.getrandbits(60) + b"." * (self._bulk - 30)


class _Plain(random.Random):
    """Chooses the first there is."""

    def choice(self, seq: Any) -> Any:
        return seq[0]
