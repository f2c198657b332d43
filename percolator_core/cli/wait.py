"""``wait``: wait until other processes have drained a chain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, Timeout, load_chain
from percolator_core.cli.output import ExitCode, Failure
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from percolator_core.cli.output import Output
    from percolator_core.database import Database
    from percolator_core.observers import Chain

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


def wait(
    path: ChainPath,
    *,
    timeout: Timeout = None,
    fail_on_quarantine: Annotated[
        bool, typer.Option("--fail-on-quarantine", help="End with exit code 4 if a cell is in quarantine.")
    ] = False,
    store: StoreOptions,
) -> None:
    """Wait until workers have observed all dirty cells. The command itself runs no observer."""
    output = outputs.current()
    output.carry_on = f"`percolator wait {path}` continues to wait"
    chain = load_chain(path, import_functions=False)
    started = time.monotonic()
    with store.existing(chain) as db:
        _until_idle(output, db, chain, None if timeout is None else started + timeout)
        from percolator_core.admin.status import status

        now = status(db, chain)
    seconds = time.monotonic() - started
    if fail_on_quarantine and now.failed:
        raise Failure(
            f"{chain.name} is idle, with {count_of(now.failed, 'cell')} in quarantine: "
            f"`percolator failed {path}` lists them",
            ExitCode.NOT_IDLE,
            quarantined=now.failed,
        )
    text = f"{chain.name} is idle after {seconds:.1f} s" + (
        f", {count_of(now.failed, 'cell')} in quarantine" if now.failed else ""
    )
    output.result({"idle": True, "seconds": round(seconds, 3), "quarantined": now.failed}, text)


def _until_idle(output: Output, db: Database, chain: Chain, deadline: float | None) -> None:
    """Wait until the backlog is empty twice in a row: in a chain with a loop, once is not enough."""
    from percolator_core.admin.status import backlog
    from percolator_core.notifications.activation import live_workers

    pause, nothing = _FIRST_PAUSE, 0
    warned = False
    with output.status(f"waiting for {chain.name}") as line:
        while True:
            left = backlog(db, chain)
            nothing = nothing + 1 if not any(left.values()) else 0
            if nothing == 2:
                return
            if not nothing and not warned and not live_workers(db):
                output.note(f"no worker is running: start one with `percolator worker {chain.path}`")
                warned = True
            if deadline is not None and time.monotonic() >= deadline and not nothing:
                total = sum(left.values())
                raise Failure(
                    f"{chain.name} was not idle within the timeout: {count_of(total, 'cell')} left",
                    ExitCode.NOT_IDLE,
                    backlog=left,
                )
            line.update(f"waiting for {chain.name}: {count_of(sum(left.values()), 'cell')} left")
            time.sleep(pause if nothing == 0 else _FIRST_PAUSE)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
