"""Maintainers are killed beside writers and workers: no read of the table differs from its twin's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from percolator_core import Cell, Database, ObserverTransaction, SnapshotTooOld, Worker
from tests.chains import chain_of, watch
from tests.servers.plain import PATIENCE, Server

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10
ROWS = 30

MAINTAINER = """
import random, sys
import percolator_core as percolator
from percolator_core.base import compaction
from percolator_core.maintenance import bases

url, namespace, seed, folder = sys.argv[1:]
bases.LEASE = 0.2
compaction.FEWEST_RUNS = 2
chance = random.Random(int(seed))
with percolator.connect(url, namespace) as db:
    db.set_base("cold", folder)
    print("ready", flush=True)
    while True:
        match chance.randrange(8):
            case 0:
                db.compact("cold")
            case 1:
                db.set_base("cold", chance.choice([folder, folder + "-other"]))
            case 2:
                db.set_base("cold", None)
                db.set_base("cold", folder)
            case _:
                db.flush("cold", chance.random() < 0.7)
"""


class Maintainers:
    """Starts a maintainer, and another one each time it is killed."""

    def __init__(self, server: Server, db: Database, folder: Path) -> None:
        self.arguments = [server.unix, db.namespace]
        self.folder = folder
        self.started = 0
        self.running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.started += 1
        program = [sys.executable, "-c", MAINTAINER, *self.arguments, str(self.started), str(self.folder)]
        self.running = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        assert self.running.stdout.readline() == "ready\n"

    def end(self) -> None:
        if self.running is not None:
            self.running.kill()

    def kill(self) -> None:
        assert self.running is not None
        assert self.running.poll() is None, "the maintainer has ended by itself"
        os.kill(self.running.pid, signal.SIGKILL)
        self.running.communicate()


def write(chance: random.Random, db: Database) -> None:
    row, column, value = f"{chance.randrange(ROWS):02}", chance.choice("vw"), chance.randbytes(4)

    def both(t: Any) -> None:
        for table in ("cold", "warm"):
            if value[0] < 60:
                t.delete_row(table, row)
            elif value[0] < 100:
                t.delete(table, row, column)
            else:
                t.set(table, row, column, value)

    db.run(both, attempts=200)


def same(db: Database) -> None:
    """Compare the rows of both tables in one snapshot; a base that goes away may refuse it."""

    def rows(t: Any, table: str) -> dict[bytes, dict[str, bytes]]:
        # Observers of the two tables do not run at one time.
        found = {row: {c: v for c, v in cells.items() if c in "vw"} for row, cells in t.scan(table)}
        return {row: cells for row, cells in found.items() if cells}

    for _ in range(50):
        snapshot = db.snapshot()
        try:
            cold, warm = rows(snapshot, "cold"), rows(snapshot, "warm")
            some = [f"{number:02}" for number in range(0, ROWS, 3)]
            cells = [snapshot.get_many((table, row, "v") for row in some) for table in ("cold", "warm")]
        except SnapshotTooOld:
            continue
        assert cold == warm
        assert cells[0] == cells[1]
        return
    raise AssertionError("every snapshot was refused")


@pytest.mark.slow
def test_killed_maintainers_lose_and_double_nothing(
    server: Server, db: Database, connect: Any, tmp_path: Path
) -> None:
    def note(t: ObserverTransaction, cell: Cell) -> None:
        found = t.get(cell.table, cell.row, "v")
        if found is None:
            t.delete(cell.table, cell.row, "seen")
        else:
            t.set(cell.table, cell.row, "seen", found)

    for table in ("cold", "warm"):
        db.create_table(table, tablets=2)
    chain = chain_of(watch("note", note, "cold.v", "warm.v", writes=("cold.seen", "warm.seen")), tables=())
    chance = random.Random(1)
    failed: list[Exception] = []
    other = connect()
    worker = Worker(other, chain)

    def work() -> None:
        try:
            worker.run()
        except Exception as error:  # noqa: BLE001 - reported below
            failed.append(error)

    maintainers = Maintainers(server, db, tmp_path / "base")
    thread = threading.Thread(target=work)
    with ExitStack() as stack:
        thread.start()
        stack.callback(thread.join)
        stack.callback(worker.stop)
        stack.callback(maintainers.end)
        for _ in range(KILLS):
            maintainers.start()
            for _ in range(chance.randrange(5, 40)):
                write(chance, db)
            same(db)
            maintainers.kill()
            same(db)
    assert not failed
    Worker(db, chain).run_until_idle(timeout=PATIENCE)
    db.client.bases.cache.forget(lambda _: False)
    db.set_base("cold", None)
    found = [dict(db.snapshot().scan(table)) for table in ("cold", "warm")]
    assert found[0] == found[1]
    assert any("seen" in cells for cells in found[0].values())
