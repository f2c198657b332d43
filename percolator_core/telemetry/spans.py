"""The spans of the runs of observers.

The span of a run is a child of the span of the commit that woke it, even if another process made that
commit (`percolator_core.telemetry.identity`). A run that writes an observed column sends a span for its own
commit, which is the root of the trace of the next runs. The two spans of a run link to each other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from percolator_core.errors import PercolatorError, TransactionConflict, abbreviated, described
from percolator_core.layout.keys import EVERY_COLUMN, MARKER, acknowledgement, is_internal
from percolator_core.layout.records import NOTIFY, VERSION_HEADER, unpack_version
from percolator_core.notation.bytestext import show_bytes
from percolator_core.runtime import process
from percolator_core.scripts import calls
from percolator_core.telemetry.export import Export, export_of_process
from percolator_core.telemetry.identity import SpanId, change_id, commit_id

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from percolator_core.notifications.dirty import Lease
    from percolator_core.observers import Chain, Observer
    from percolator_core.transaction.client import Client
    from percolator_core.transaction.transaction import Transaction
    from percolator_core.transaction.write_set import Mutation
    from percolator_core.views.changes import AnyChange

LONGEST_KEY: Final = 64
"""A span shows this many characters of a row key, and of a column name."""

MOST_LINKS: Final = 16
"""A run links to at most this many further changes that it observed."""

_MOST_NOTIFIED: Final = 4096
"""The last notifications of this many cells are remembered."""

_LONGEST_ERROR: Final = 2_000

NotifiedCell = tuple[str, bytes, bytes]
"""Table, row and column."""


class Spans:
    """Makes the spans of the runs of one worker."""

    def __init__(self, client: Client, chain: Chain) -> None:
        self.client = client
        self.export: Export = export_of_process()
        self.namespace = client.store.keyspace.namespace
        self.chain = chain
        self._notified: OrderedDict[NotifiedCell, list[SpanId]] = OrderedDict()
        self._noting = process.Lock()
        self._from_outside: dict[tuple[str, str], bool] = {}

    def begin(self, lease: Lease, observer: Observer) -> RunSpan:
        """Begin the span of a run on a leased cell."""
        return RunSpan(self, lease, observer)

    def change(self, table: str, row: bytes, column: str, commit_ts: int) -> SpanId:
        """Return the id of the span for a change of an observed cell."""
        if self.is_from_outside(table, column):
            return change_id(self.namespace, table, row, commit_ts)
        return commit_id(self.namespace, commit_ts)

    def is_from_outside(self, table: str, column: str) -> bool:
        """Return True if no observer of the chain writes the column: its changes have no commit span."""
        known = self._from_outside.get((table, column))
        if known is None:
            writers = self.chain.observers.values()
            known = not any(one.declares(table, column, notify_only=False) for one in writers)
            self._from_outside[table, column] = known
        return known

    def notify(self, cell: NotifiedCell, by: SpanId) -> None:
        """Remember who notified a cell. The store keeps no record of it, so other processes cannot know."""
        with self._noting:
            causes = self._notified.setdefault(cell, [])
            self._notified.move_to_end(cell)
            causes.append(by)
            del causes[:-MOST_LINKS]
            if len(self._notified) > _MOST_NOTIFIED:
                self._notified.popitem(last=False)

    def notifiers(self, cell: NotifiedCell) -> tuple[SpanId, ...]:
        """Return the last notifications of a cell by this process."""
        return tuple(self._notified.get(cell, ()))

    def observed(self, cell: NotifiedCell, causes: tuple[SpanId, ...]) -> None:
        """Forget notifications that a run has observed."""
        with self._noting:
            left = [one for one in self._notified.get(cell, ()) if one not in causes]
            if left:
                self._notified[cell] = left
            else:
                self._notified.pop(cell, None)


class RunSpan:
    """The span of one run, with its repetitions after conflicts. A context manager around the run.

    An exception that leaves the run ends the span, too: the store does not answer, or the worker breaks off.
    """

    __slots__ = ("_began", "_cause", "_causes", "_conflicts", "_lease", "_observer", "_span", "_spans")

    def __init__(self, spans: Spans, lease: Lease, observer: Observer) -> None:
        self._spans, self._lease, self._observer = spans, lease, observer
        self._began = time.time_ns()
        self._span: Span | None = None
        self._cause: AnyChange | None = None
        self._causes: tuple[SpanId, ...] = ()
        self._conflicts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.end("broken off", 0, error)

    # The steps of a run.

    def attach(self, cell: AnyChange) -> Token[Context]:
        """Make the span the current one of the observer's code, which begins to process a cell."""
        if self._span is None:
            self._woken(cell)
        assert self._span is not None
        return context.attach(trace.set_span_in_context(self._span))

    def _woken(self, cell: AnyChange) -> None:
        """Start the span, below the span of the change that the run observes."""
        spans, lease = self._spans, self._lease
        links: list[Link] = []
        parent = None
        if self._observer.mode == "weak":
            self._causes = spans.notifiers((lease.table, lease.row, lease.column))
            links = [Link(spans.export.context_of(one)) for one in self._causes]
        else:
            self._cause = cell
            parent = spans.change(cell.table, cell.row, cell.column, cell.timestamp)
        self._start(cell.column, parent, links)

    def detach(self, token: Token[Context]) -> None:
        """Undo `attach`."""
        context.detach(token)

    def lost(self, error: Exception) -> None:
        """Record an aborted transaction: the run is repeated, or its cell is given back."""
        if isinstance(error, TransactionConflict):
            self._conflicts += 1
            found = {"reason": error.reason, "table": error.table, "column": error.column}
            attributes = {f"percolator.{name}": _shown(one) for name, one in found.items()}
        else:
            attributes = {"percolator.reason": described(error, _LONGEST_ERROR)}
        if self._span is not None:
            self._span.add_event("transaction aborted", attributes)

    def commit(self, transaction: Transaction) -> None:
        """Commit the transaction of the run, and send a span for the commit if it may wake observers."""
        observed = [one for one in transaction.mutations() if self._is_observed(one)]
        began = time.time_ns()
        commit_ts = transaction.commit()
        ended = time.time_ns()
        assert self._span is not None
        self._span.add_event(
            "commit",
            {
                "percolator.commit_timestamp": commit_ts,
                "percolator.start_timestamp": transaction.start_timestamp,
                "percolator.observed_writes": len(observed),
            },
            ended,
        )
        if not observed:
            return
        own = commit_id(self._spans.namespace, commit_ts)
        self._span.add_link(self._spans.export.context_of(own))
        span = self._spans.export.root(
            f"{self._observer.name} commit",
            own,
            kind=SpanKind.PRODUCER,
            attributes=self._common() | {"percolator.commit_timestamp": commit_ts},
            links=[Link(self._span.get_span_context())],
            start_time=began,
        )
        span.end(ended)
        for one in observed:
            if one.kind == NOTIFY:
                self._spans.notify((one.table, one.row, one.column), own)

    def end(self, outcome: str, start_ts: int, error: BaseException | None = None) -> None:
        """End the span. ``start_ts`` is the start timestamp of the last transaction, 0 if it has none."""
        ended = time.time_ns()
        if self._span is None:
            if outcome == "collapsed":
                return  # no observer ran, so there is nothing to show
            column = self._spans.client.catalog.column_name(self._lease.table, self._lease.column)
            self._start(column, None, [])
        span = self._span
        assert span is not None
        if not span.is_recording():
            return  # it was not sampled, or has ended
        span.set_attributes({"percolator.outcome": outcome, "percolator.conflicts": self._conflicts})
        if start_ts:
            span.set_attribute("percolator.start_timestamp", start_ts)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, described(error, _LONGEST_ERROR)))
        try:
            if outcome == "ran":
                self._link_changes(span, start_ts)
        finally:
            span.end(ended)  # also if the worker breaks off while it reads the causes

    # Details.

    def _start(self, column: str, parent: SpanId | None, links: list[Link]) -> None:
        lease = self._lease
        self._span = self._spans.export.child(
            self._observer.name,
            parent,
            kind=SpanKind.CONSUMER,
            attributes=self._common()
            | {
                "percolator.table": lease.table,
                "percolator.row": show_bytes(lease.row, LONGEST_KEY),
                "percolator.column": abbreviated(column, LONGEST_KEY),
                "percolator.attempt": lease.tries + 1,
                "percolator.mode": self._observer.mode,
            },
            links=links,
            start_time=self._began,
        )

    def _common(self) -> dict[str, Any]:
        return {
            "percolator.namespace": self._spans.namespace,
            "percolator.chain": self._spans.chain.name,
            "percolator.observer": self._observer.name,
        }

    def _is_observed(self, mutation: Mutation) -> bool:
        if is_internal(mutation.column):
            return False
        column = self._spans.client.catalog.column_name(mutation.table, mutation.column)
        observed = self._spans.chain.observed
        return (mutation.table, column) in observed or (mutation.table, EVERY_COLUMN) in observed

    def _link_changes(self, span: Span, start_ts: int) -> None:
        """Link to the other changes that the run observed, and send the spans of changes from outside."""
        lease, cause, spans = self._lease, self._cause, self._spans
        if cause is None:
            spans.observed((lease.table, lease.row, lease.column), self._causes)
            return
        try:
            changes = self._changes(cause, start_ts)
        except PercolatorError:
            changes = [cause.timestamp]  # the store does not answer
        for at in changes:
            if at != cause.timestamp:
                other = spans.change(cause.table, cause.row, cause.column, at)
                span.add_link(spans.export.context_of(other))
        # Of the observers of a column, the first one sends the spans of its changes.
        observers = spans.chain.observed.get((cause.table, cause.column), ())
        if self._observer.name in observers[:1] and spans.is_from_outside(cause.table, cause.column):
            for at in changes:
                self._send_change(cause, at)

    def _changes(self, cause: AnyChange, start_ts: int) -> list[int]:
        """Read the commit timestamps of the changes that this run is the first to observe, oldest first."""
        lease = self._lease
        if lease.column == MARKER:
            return [cause.timestamp]  # the changes of a row are in the histories of all its cells
        acked = acknowledgement(lease.observer, lease.column)
        versions, acks = self._spans.client.store.run_all(
            [
                calls.history(lease.tag, lease.row, lease.column, MOST_LINKS + 1, VERSION_HEADER),
                calls.history(lease.tag, lease.row, acked, 2, VERSION_HEADER),
            ]
        )
        before = [one for one in map(unpack_version, acks) if one.start_ts < start_ts]
        if not before:
            # Garbage collection or a base may have removed acknowledgements, so older changes may have had
            # a run.
            return [cause.timestamp]
        if before[0].value is None:
            return []  # a rerun deleted the acknowledgement: an earlier run has observed the change
        found = [unpack_version(one).commit_ts for one in versions]
        return sorted({cause.timestamp, *(at for at in found if before[0].start_ts < at < start_ts)})

    def _send_change(self, cause: AnyChange, commit_ts: int) -> None:
        at = commit_ts * 1000
        span = self._spans.export.root(
            f"change of {abbreviated(f'{cause.table}.{cause.column}', LONGEST_KEY)}",
            change_id(self._spans.namespace, cause.table, cause.row, commit_ts),
            kind=SpanKind.PRODUCER,
            attributes={
                "percolator.namespace": self._spans.namespace,
                "percolator.table": cause.table,
                "percolator.row": show_bytes(cause.row, LONGEST_KEY),
                "percolator.column": abbreviated(cause.column, LONGEST_KEY),
                "percolator.commit_timestamp": commit_ts,
            },
            start_time=at,
        )
        span.end(at)


def _shown(value: object) -> str:
    return (
        show_bytes(value, LONGEST_KEY) if isinstance(value, bytes) else abbreviated(str(value), LONGEST_KEY)
    )
