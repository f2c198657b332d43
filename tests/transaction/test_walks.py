"""Three walks, whose files docs/explanation/architecture.md lists: a write, a read, an observer's run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import percolator_core
from percolator_core import Cell, Database, Worker
from percolator_core.observers import ObserverTransaction
from tests.chains import chain_of, watch
from tests.servers.plain import PATIENCE

LIBRARY: Final = Path(percolator_core.__file__).parent
PAGE: Final = LIBRARY.parent / "docs" / "explanation" / "architecture.md"

MOST: Final = {"A write": 9, "A read": 6, "A run": 11}
"""Most files of each walk. They may only become fewer: of a run, 10 are the goal."""


def files_on_the_page(walk: str) -> list[str]:
    section = re.search(
        rf"^### {walk}\n(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    return re.findall(r"^\d+\. `([\w/.]+)`", section[1], re.MULTILINE)


@contextmanager
def recorded(below: str = "") -> Iterator[list[str]]:
    """The files of the library in order of first call; those that functions named ``below`` call, if given.

    A script is listed after the call by which a transaction or an observer's run sends it.
    """
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(LIBRARY) or (below and not is_below(frame)):
            return
        found = [path.relative_to(LIBRARY).as_posix()]
        caller = frame.f_back
        if (
            frame.f_code.co_qualname == "Store.command"
            and caller
            and "/store/" not in caller.f_code.co_filename
        ):
            found.append(f"scripts/{frame.f_locals['call'][0]}.lua")
        files.extend(one for one in found if one not in files)

    def is_below(frame: FrameType) -> bool:
        caller = frame.f_back
        while caller is not None and caller.f_code.co_qualname != below:
            caller = caller.f_back
        return caller is not None

    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)


def write(db: Database) -> list[str]:
    def one() -> None:
        with db.transaction() as t:
            t.set("t", "row", "v", b"value")

    return walk(one)


def read(db: Database) -> list[str]:
    """A read of a transaction that has read another cell: the first read also fixes the snapshot."""
    with db.transaction() as t:
        t.set("t", "row", "v", b"value")
    db.snapshot().get("t", "row", "v")
    with db.transaction() as t:
        t.get("t", "row", "other")
        with recorded() as files:
            assert t.get("t", "row", "v") == b"value"
    return files


def run(db: Database) -> list[str]:
    """The files of a run beside those of its read and its write."""

    def copy(t: ObserverTransaction, cell: Cell) -> None:
        t.set("t", cell.row, "w", t.get("t", cell.row, "v") or b"")

    chain = chain_of(watch("copy", copy, "t.v", writes=("t.w",)), tables=())
    Worker(db, chain, prefetch=False).run_until_idle(timeout=PATIENCE)

    def one() -> list[str]:
        with db.transaction() as t:
            t.set("t", "row", "v", b"value")
        with recorded(below="WorkerLoop._run") as files:
            Worker(db, chain, prefetch=False).run_until_idle(timeout=PATIENCE)
        return files

    one()
    beside = {*write(db), *read(db)}
    return [file for file in one() if file not in beside and not file.startswith("store/")]


def walk(action: Callable[[], object]) -> list[str]:
    for _ in range(3):
        action()  # connect, load scripts, look up the table
    with recorded() as files:
        action()
    return files


@pytest.mark.parametrize(("name", "follow"), [("A write", write), ("A read", read), ("A run", run)])
def test_a_walk_is_as_the_page_lists_it(
    db: Database, name: str, follow: Callable[[Database], list[str]]
) -> None:
    files = follow(db)
    assert files == files_on_the_page(name)
    assert len(files) <= MOST[name]
    assert all((LIBRARY / file).exists() for file in files)
