"""The parts of an attack that need a process of their own: signal handlers, finalizers and forks.

``python -m tests.attack.program WAY SEED STEPS URL``: WAY is ``timer``, ``calls``, ``finalizers``, ``tasks``
or ``forks``. It exits with 1 and says what is wrong, also if nothing has moved for `STALL` seconds.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, Final

from percolator_core import Database, PercolatorError
from percolator_torture.histories.journal import Journal, read_records
from tests.attack.actor import Actor
from tests.attack.attack import STALL, Attack
from tests.attack.session import WITNESS
from tests.attack.views import View

TABLES: Final = ("stock", "shape")

QUIET: Final = {"begin": 20, "read": 50, "scan": 4, "go_on": 8, "finish": 20, "write": 20}
"""Steps without changes of tables."""

_LIBRARY: Final = "percolator_core"
_DEEPEST: Final = 2


class Interruptions:
    """Uses the database of the main code at moments that the main code does not choose."""

    def __init__(self, attack: Attack, db: Database, dice: random.Random) -> None:
        self._attack = attack
        self._db = db
        self._dice = dice
        self._depth = 0
        self._left = 1
        self._thread = threading.get_ident()
        self.over = False
        self.made = 0
        self.actor = Actor(attack, "nested", [db], tables=TABLES)

    def happen(self) -> None:
        """One nested use. It works, or is refused; whatever else it raises is a complaint."""
        # Finalizers run in whatever thread Python looks for cycles: an actor is for one only.
        if self.over or self._depth >= _DEEPEST or threading.get_ident() != self._thread:
            return
        self._depth += 1
        try:
            self.made += 1
            self.actor.nested(self.made)
        except BaseException:  # noqa: BLE001 - reported with the seed and the step
            self._attack.complaints.append(f"nested use {self.made}: {traceback.format_exc(limit=-12)}")
        finally:
            self._depth -= 1

    @contextmanager
    def by_timer(self) -> Iterator[None]:
        """A signal handler, by a timer that is set again each time."""

        def handle(_signal: int, _frame: FrameType | None) -> None:
            self.happen()
            signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(0.0005, 0.005))

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def at_calls(self) -> Iterator[None]:
        """A signal handler, at function calls and returns inside the library that the dice choose."""
        signal.signal(signal.SIGUSR1, lambda _signal, _frame: self.happen())

        def look(frame: FrameType, _event: str, _argument: Any) -> None:
            if self._depth or f"/{_LIBRARY}/" not in frame.f_code.co_filename:
                return
            self._left -= 1
            if self._left <= 0:
                self._left = self._dice.randint(1, 600)
                signal.raise_signal(signal.SIGUSR1)

        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(None)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @contextmanager
    def by_finalizers(self) -> Iterator[None]:
        """Finalizers of objects in cycles, whenever Python looks for those."""
        before = gc.get_threshold()
        gc.set_threshold(120, 2, 2)

        def bury() -> None:
            if not self.over:
                _Corpse(self.happen, bury)

        for _ in range(3):
            bury()
        try:
            yield
        finally:
            self.over = True
            gc.set_threshold(*before)


class _Corpse:
    """Is found by the collector of cycles; its finalizer makes another one."""

    def __init__(self, happen: Callable[[], object], bury: Callable[[], object]) -> None:
        self.me = self
        self._happen = happen
        self._bury = bury

    def __del__(self) -> None:
        self._happen()
        self._bury()


def interrupted(attack: Attack, way: str, steps: int) -> str:
    """The main code makes steps, and is interrupted by others of the same database."""
    actor = attack.actor("main", 1, tables=TABLES, weights=QUIET)
    _fill(actor)
    db = actor.databases[0]
    interruptions = Interruptions(attack, db, random.Random(f"{attack.seed}/{way}"))
    ways = {
        "timer": interruptions.by_timer,
        "tasks": interruptions.at_calls,
        "calls": interruptions.at_calls,
        "finalizers": interruptions.by_finalizers,
    }
    with ways[way]():
        if way == "tasks":
            tasks = [Actor(attack, f"task{one}", [db], tables=TABLES, weights=QUIET) for one in range(4)]
            with db.concurrency(4) as executor:
                list(executor.map(lambda task: task.run(max(1, steps // 4)), tasks))
        else:
            actor.run(steps)
    return f"{interruptions.made} nested uses, {interruptions.actor.refused} of them refused"


def forking(attack: Attack, steps: int) -> str:
    """Children are forked in the middle of everything, and carry on what the parent had begun."""
    main = attack.actor("main", 2, tables=TABLES, weights=QUIET)
    _fill(main)
    beside = attack.actor("beside", 1, tables=TABLES, weights=QUIET)
    thread = threading.Thread(target=beside.run, args=(steps,), daemon=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        folder = Path(name)
        thread.start()
        for number in range(1, max(2, steps // 30) + 1):
            main.run(20, end=False)
            _fork(attack, main, folder, number)
        main.run(1)
        while thread.is_alive():
            thread.join(1)
        for path in sorted(folder.glob("*.history")):
            attack.records.extend(read_records(path))
        for path in sorted(folder.glob("*.json")):
            attack.complaints.extend(json.loads(path.read_text()))
    return f"{number} children"


def _fork(attack: Attack, main: Actor, folder: Path, number: int) -> None:
    pid = os.fork()
    if not pid:
        attack.moved = lambda: None  # the watchdog's thread has not come along: the parent is the watchdog
        status = 1
        try:
            _live_as_child(attack, main, folder, number)
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not go on with its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    main.run(10, end=False)
    until = time.monotonic() + STALL
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        attack.moved()
        time.sleep(0.005)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGUSR2)  # where it stands goes to stderr
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
            until = inf
    status = os.waitstatus_to_exitcode(ended[1])
    if status:
        why = f"it hung for {STALL:g} s" if until == inf else f"it exited with {status}"
        attack.complaints.append(f"{main.at}: child {number}: {why}, see stderr")


def _live_as_child(attack: Attack, main: Actor, folder: Path, number: int) -> None:
    """Carry on what the parent had begun, then work on the same connections on one's own account."""
    attack.records, attack.complaints = [], []
    for view in main.views:
        _carry_on(attack, view, main.at, number)
    actor = Actor(attack, f"child{number}", main.databases, tables=TABLES, weights=QUIET)
    actor.run(12)
    with_journal = Journal(folder, f"child{number}")
    for record in attack.records:
        with_journal.note(record)
    (folder / f"child{number}.json").write_text(json.dumps(attack.complaints))


def _carry_on(attack: Attack, view: View, at: str, number: int) -> None:
    """Use a transaction of the parent. Reads may be answered from memory; to commit is refused."""
    if not view.writable:
        return
    try:
        view.set(WITNESS, b"%b in child %d" % (view.id.encode(), number), "by", b"")
        commit_ts = view.writer.commit()
    except PercolatorError:
        return
    except Exception:  # noqa: BLE001 - reported with the seed and the step
        attack.complaints.append(f"{at}: {view.id} in child {number}: {traceback.format_exc(limit=-8)}")
        return
    attack.complaints.append(
        f"{at}: the parent began {view.id}, and its child {number} was told that it committed it at "
        f"{commit_ts}; the parent goes on with it"
    )


def _fill(actor: Actor) -> None:
    for table, typed in zip(TABLES, (True, False), strict=True):
        actor.changer.create(table, typed=typed, tablets=2)
        actor.fill(table, "a")


def main(way: str, seed: int, steps: int, url: str) -> int:
    """Attack, judge, and say what is wrong."""
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    with Attack(url, seed) as attack:
        attack.moved = lambda: faulthandler.dump_traceback_later(STALL, exit=True)
        try:
            did = forking(attack, steps) if way == "forks" else interrupted(attack, way, steps)
            faulthandler.dump_traceback_later(3 * STALL, exit=True)
            print(f"{way}: {did}; {attack.conclude()}")
        except AssertionError as error:
            print(f"AssertionError: {error}", flush=True)
            sys.stderr.flush()
            os._exit(1)
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    way, seed, steps, url = sys.argv[1:]
    sys.exit(main(way, int(seed), int(steps), url))
