"""Histories on disk: they come back as they were, from any prefix of their files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from percolator_torture.histories.history import (
    CellKey,
    OwnRead,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.journal import Journal, read_history, read_records
from percolator_torture.histories.marks import UNMARKED, Mark, tag_value, untag_value
from tests.torture.simulator import Mix, simulate

STRANGE = CellKey("tä\n", b'\x00\xff{}\n"', "c:|*")
RICH = TransactionRecord(
    "w1",
    7,
    100,
    200,
    10,
    11,
    reads=(Read(STRANGE, UNMARKED), Read(STRANGE, Mark("w2", 3, 2)), Read(CellKey("t", b"", "v"), None)),
    own_reads=(OwnRead(STRANGE, 0, None), OwnRead(STRANGE, 3, Mark("w1", 7, 3))),
    scans=(
        ScanRead("t", b"\x80", None, None, (), ()),
        ScanRead("t", b"", b"\xff", ("v", "w"), (Read(STRANGE, Mark("w3", 1)),), (Write(STRANGE, 0),)),
    ),
    writes=(Write(STRANGE, 0), Write(CellKey("t", b"x", "v"), 3)),
)


def unfinished(record: TransactionRecord) -> TransactionRecord:
    return replace(record, returned=None, outcome="unknown", commit_ts=None)


def test_a_journal_comes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w1")
    blind = TransactionRecord("w1", 8, 150, 300, 20, 21, writes=(Write(STRANGE),), blind=True)
    given_up = TransactionRecord("w1", 9, 160, 170, None, outcome="fail", writes=(Write(STRANGE),))
    lost = TransactionRecord("w1", 10, 180, None, 22, outcome="unknown", writes=(Write(STRANGE),))
    journal.intend(unfinished(RICH))
    journal.intend(unfinished(replace(blind, start_ts=None)))
    journal.note(given_up)
    journal.intend(lost)
    journal.conclude(blind)
    journal.conclude(RICH)
    journal.close()
    journal.close()
    assert list(read_records(journal.path)) == [given_up, blind, RICH, lost]
    assert list(read_history(tmp_path)) == [given_up, blind, RICH, lost]


def test_simulated_histories_come_back(tmp_path: Path) -> None:
    history, _ = simulate(1, 500, mix=Mix(scans=0.2))
    journals: dict[str, Journal] = {}
    for record in history:
        if record.process not in journals:
            journals[record.process] = Journal(tmp_path, record.process)
        journal = journals[record.process]
        if record.writes:
            journal.intend(unfinished(replace(record, start_ts=None if record.blind else record.start_ts)))
            if record.returned is not None:
                journal.conclude(record)
        else:
            journal.note(record)
    found = read_history([journal.path for journal in journals.values()])
    assert sorted(found, key=lambda record: record.id) == sorted(history, key=lambda record: record.id)


def test_any_prefix_can_be_read(tmp_path: Path) -> None:
    """Whatever byte a kill cuts it off at: all before the last line is there, and what is open is unknown."""
    journal = Journal(tmp_path, "w1")
    second = replace(RICH, number=8, reads=(Read(CellKey("t", b"new", "v"), None),))
    journal.intend(unfinished(RICH))
    journal.conclude(RICH)
    journal.note(second)
    data = journal.path.read_bytes()
    ends = [end + 1 for end, byte in enumerate(data) if byte == ord("\n")]
    expected: list[list[TransactionRecord]] = [[], [], [unfinished(RICH)], [RICH], [RICH, second]]
    cut = tmp_path / "cut"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        whole_lines = sum(1 for end in ends if end <= length)
        assert list(read_records(cut)) == expected[whole_lines], length


def test_damage_before_the_end_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w1")
    journal.note(RICH)
    for damage in (b"{]\n", b'{"n": 5, "o": "ok"}\n', b'{"history": 2, "process": "w"}\n'):
        broken = tmp_path / "broken"
        broken.write_bytes(
            damage + journal.path.read_bytes() if b"history" in damage else journal.path.read_bytes() + damage
        )
        with pytest.raises(ValueError, match="damaged in line"):
            read_history(broken)


def test_a_name_is_used_once(tmp_path: Path) -> None:
    Journal(tmp_path, "w1")
    with pytest.raises(FileExistsError):
        Journal(tmp_path, "w1")
    with pytest.raises(ValueError, match="letters"):
        Journal(tmp_path, "../w")


def test_nothing_follows_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, "w1")
    write = os.write

    def full(file: int, data: bytes) -> int:
        write(file, data[:10])
        raise OSError("no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        journal.note(RICH)
    monkeypatch.undo()
    with pytest.raises(OSError, match="torn line"):
        journal.note(RICH)
    assert list(read_records(journal.path)) == []


@pytest.mark.parametrize("payload", [b"", b"|", b"w1:1:1|", bytes(range(256))])
def test_values_carry_their_mark(payload: bytes) -> None:
    mark = Mark("w.1-_", 2**31 - 1, 2**16 - 1)
    assert untag_value(tag_value(mark, payload)) == (mark, payload)
    assert Mark.parse(str(mark)) == mark


@pytest.mark.parametrize("value", [b"", b"10", b"w1:0:1|x", b"w1:1:0|x", b"w1:9999999999:1|x", b"w1:1|x"])
def test_values_without_a_mark(value: bytes) -> None:
    assert untag_value(value) == (UNMARKED, value)
