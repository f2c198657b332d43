"""Histories on disk: a file for each process, which can be read even if its process is killed at any byte.

A line of JSON is a transaction, or its *intent*: the transaction without its result, written before the
commit. The result is then a line of its own. So each transaction that may have committed is in the file. If
the process was killed, the transaction has no result, and its outcome counts as unknown. A line is passed to
the operating system in one call before the next step. The line need not reach the disk, because only the
process dies, not the machine.

::

    {"history": 1, "process": "w1"}            the first line
    {"n": 7, "b": 1001, "s": 12, …}            an intent: number, began, start_ts or null
        "r": [[0, "w2:3:1"], [1, null]]        reads: cell, mark of the value or null
        "w": [[0, 1], [2, 0]]                  writes: cell, which value, 0 for a deletion
        "own", "scans": …                      in the order of the fields of `OwnRead` and `ScanRead`
        "cells": [["t", "row", "column"]]      cells that no earlier line named; their numbers begin at 0
    {"n": 7, "e": 1050, "s": 12, "c": 15, "o": "ok"}   the result: returned, start_ts, commit_ts, outcome

A transaction without an intent is one line. Row keys are bytes, written as Latin-1.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from percolator_torture.histories.history import (
    CellKey,
    History,
    OwnRead,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.marks import UNMARKED, Mark, check_process

FORMAT: Final = 1
SUFFIX: Final = ".history"


class Journal:
    """The file of one process, ``<folder>/<process>.history``. Threads may share it; a fork may not.

    Raises:
        FileExistsError: the name is taken; two processes of one name would write the same marks.
        ValueError: the name is not valid.
    """

    def __init__(self, folder: str | Path, process: str) -> None:
        check_process(process)
        self.process = process
        self.path = Path(folder) / f"{process}{SUFFIX}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._cells: dict[CellKey, int] = {}
        self._new: list[CellKey] = []
        self._torn = False
        self._write({"history": FORMAT, "process": process})

    def intend(self, record: TransactionRecord) -> None:
        """Write the intent of a transaction that is about to commit."""
        self._write_record(record, {})

    def conclude(self, record: TransactionRecord) -> None:
        """Write the result of a transaction whose intent is written."""
        with self._lock:
            self._write({"n": record.number, **_result(record)})

    def note(self, record: TransactionRecord) -> None:
        """Write a transaction that has ended without an attempt to commit, or with nothing to commit."""
        self._write_record(record, _result(record))

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child: its transactions would have the ids of its parent's."""
        if os.getpid() != self._pid:
            raise RuntimeError("a recorder does not survive a fork: make one in the child, with its own name")

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    # Internals.

    def _write_record(self, record: TransactionRecord, result: dict[str, Any]) -> None:
        with self._lock:
            line: dict[str, Any] = {"n": record.number, "b": record.began, "s": record.start_ts, **result}
            if record.blind:
                line["blind"] = 1
            if record.reads:
                line["r"] = self._reads(record.reads)
            if record.own_reads:
                line["own"] = [
                    [self._number(cell), wrote, _text(seen)] for cell, wrote, seen in record.own_reads
                ]
            if record.scans:
                line["scans"] = [
                    [
                        scan.table,
                        scan.low.decode("latin-1"),
                        None if scan.high is None else scan.high.decode("latin-1"),
                        scan.columns,
                        self._reads(scan.seen),
                        self._writes(scan.own),
                    ]
                    for scan in record.scans
                ]
            if record.writes:
                line["w"] = self._writes(record.writes)
            if self._new:
                line["cells"] = [[table, row.decode("latin-1"), column] for table, row, column in self._new]
                self._new.clear()
            self._write(line)

    def _reads(self, reads: Iterable[Read]) -> list[list[Any]]:
        return [[self._number(cell), _text(seen)] for cell, seen in reads]

    def _writes(self, writes: Iterable[Write]) -> list[list[int]]:
        return [[self._number(cell), write] for cell, write in writes]

    def _number(self, cell: CellKey) -> int:
        number = self._cells.get(cell)
        if number is None:
            number = self._cells[cell] = len(self._cells)
            self._new.append(cell)
        return number

    def _write(self, line: dict[str, Any]) -> None:
        self.check_process()
        if self._torn:
            raise OSError(f"{self.path} has a torn line, so no line can follow: begin another history")
        left = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._torn = True  # until the whole line is written: lines after a torn one could not be read
        while left:
            left = left[os.write(self._file, left) :]
        self._torn = False


def read_history(source: str | Path | Iterable[str | Path]) -> History:
    """Read the history in the files of many processes, or in all ``*.history`` files of a folder.

    Raises:
        ValueError: a file is no history, or is damaged before its last line.
    """
    if isinstance(source, str | Path):
        source = sorted(Path(source).glob(f"*{SUFFIX}")) if Path(source).is_dir() else [source]
    history = History()
    with _no_collector():
        for path in source:
            for record in read_records(path):
                history.add(record)
    return history


def read_records(path: str | Path) -> Iterator[TransactionRecord]:
    """Yield the transactions in one file: first those with a result, as they ended, then those without.

    Raises the errors of `read_history`.
    """
    reader = _Reader()
    with Path(path).open("rb") as lines:
        for count, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break  # torn: its process was killed while it wrote
            try:
                record = reader.take(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{path} is damaged in line {count}: {error!r}") from error
            if record is not None:
                yield record
    yield from reader.open.values()


class _Reader:
    """Reads one file, line by line."""

    def __init__(self) -> None:
        self.process = ""
        self.cells: list[CellKey] = []
        self.open: dict[int, TransactionRecord] = {}

    def take(self, line: dict[str, Any]) -> TransactionRecord | None:
        """Return the transaction that ends with a line, if there is one."""
        if not self.process:
            if line["history"] != FORMAT:
                raise ValueError(f"this version reads histories of format {FORMAT}")
            self.process = line["process"]
            return None
        if "b" not in line:
            return dataclasses.replace(self.open.pop(line["n"]), **_result_of(line))
        self.cells += [
            CellKey(table, row.encode("latin-1"), column) for table, row, column in line.get("cells", ())
        ]
        record = self._record(line)
        if "o" in line:
            return record
        self.open[record.number] = record
        return None

    def _record(self, line: dict[str, Any]) -> TransactionRecord:
        result: dict[str, Any] = {
            "outcome": "unknown",
            "start_ts": line["s"],
            "commit_ts": None,
            "returned": None,
        }
        if "o" in line:
            result = _result_of(line)
        cells = self.cells
        return TransactionRecord(
            process=self.process,
            number=line["n"],
            began=line["b"],
            reads=self._reads(line.get("r", ())),
            own_reads=tuple(
                OwnRead(cells[cell], wrote, _mark(seen)) for cell, wrote, seen in line.get("own", ())
            ),
            scans=tuple(
                ScanRead(
                    table,
                    low.encode("latin-1"),
                    None if high is None else high.encode("latin-1"),
                    None if columns is None else tuple(columns),
                    self._reads(seen),
                    self._writes(own),
                )
                for table, low, high, columns, seen, own in line.get("scans", ())
            ),
            writes=self._writes(line.get("w", ())),
            blind="blind" in line,
            **result,
        )

    def _reads(self, reads: Iterable[tuple[int, str | None]]) -> tuple[Read, ...]:
        return tuple(Read(self.cells[cell], _mark(seen)) for cell, seen in reads)

    def _writes(self, writes: Iterable[tuple[int, int]]) -> tuple[Write, ...]:
        return tuple(Write(self.cells[cell], write) for cell, write in writes)


def _result(record: TransactionRecord) -> dict[str, Any]:
    return {"e": record.returned, "s": record.start_ts, "c": record.commit_ts, "o": record.outcome}


def _result_of(line: dict[str, Any]) -> dict[str, Any]:
    return {"returned": line["e"], "start_ts": line["s"], "commit_ts": line["c"], "outcome": line["o"]}


def _mark(text: str | None) -> Mark | None:
    if text is None:
        return None
    return UNMARKED if text == "?" else Mark.parse(text)


def _text(mark: Mark | None) -> str | None:
    if mark is None:
        return None
    return "?" if mark == UNMARKED else str(mark)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Switch Python's garbage collector off: none of the millions of small objects is in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
