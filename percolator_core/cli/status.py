"""``status``: the state of a namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.options import OptionalChainPath, StoreOptions, load_chain
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of, show_age, show_size
from percolator_core.notation.times import show_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.admin.status import Status
    from percolator_core.notifications.activation import LiveWorker


def status(path: OptionalChainPath = None, *, store: StoreOptions) -> None:
    """Show tables, observers with their backlog, locks, workers and the store.

    With PATH, show all observers of the chain in dependency order, with the revisions of their code.
    Observers that no worker has run yet are shown, too.
    """
    from percolator_core.admin.status import status as read_status

    chain = load_chain(path, import_functions=False) if path is not None else None
    with store.existing(chain) as db:
        now = read_status(db, chain)
    sums = {"idle": now.idle, "backlog": now.backlog, "failed": now.failed, "locks": now.locks}
    outputs.current().result(asdict(now) | sums, *_human(now, revisions=chain is not None))


def _human(now: Status, *, revisions: bool) -> list[RenderableType]:
    tables = outputs.table("table", ">rows", ">tablets", ">locks")
    for one in now.tables:
        tables.add_row(one.name, f"{one.rows:,}", str(one.tablets), str(one.locks))
    numbers = [">backlog", ">waiting", ">oldest", ">failed", ">ran", ">failures"]
    revision = [">revision"] if revisions else []
    observers = outputs.table("observer", "observes", *revision, *numbers, "")
    for observer in now.observers:
        observers.add_row(
            observer.name,
            ", ".join(map(abbreviated, observer.columns)),
            *([str(observer.revision or "-")] if revisions else []),
            f"{observer.backlog:,}",
            f"{observer.waiting:,}",
            show_age(observer.oldest),
            Text(f"{observer.failed:,}", style="red" if observer.failed else ""),
            f"{observer.ran:,}",
            f"{observer.failures:,}",
            "" if observer.active else "not active yet",
        )
    memory = show_size(now.store.memory)
    if now.store.memory_limit:
        memory += f" of {show_size(now.store.memory_limit)}"
    idle = "idle" if now.idle else f"{count_of(now.backlog, 'cell')} to observe"
    workers = [Text(_show_worker(one)) for one in now.workers]
    return [
        Text(
            f"{now.namespace}: {idle}" + (f", {now.failed:,} in quarantine" if now.failed else ""),
            style="bold",
        ),
        Text(f"store: {now.store.url}, Redis {now.store.version}, {memory}"),
        *(workers or [Text("worker: none is running")]),
        "",
        tables if now.tables else "no tables yet",
        *_bases(now),
        "",
        observers
        if now.observers
        else "no observers yet: they become active with the first worker, drain or load",
    ]


def _bases(now: Status) -> list[RenderableType]:
    """Return the bases of tables, after an empty line; nothing if no table has a base."""
    bases = outputs.table("base of", ">rows", ">size", ">height", "location")
    for table in now.tables:
        base = table.base
        if base is not None:
            place = Text(base.error, style="red") if base.error else base.location
            bases.add_row(table.name, f"{base.rows:,}", show_size(base.bytes), str(base.height), place)
    return ["", bases] if bases.row_count else []


def _show_worker(worker: LiveWorker) -> str:
    kind = "drain" if worker.until_idle else "worker"
    some = "" if worker.observers is None else f" with {', '.join(worker.observers)}"
    return f"{kind}: {worker.where}{some}, since {show_time(worker.since)}"
