"""``trace``: how it is drawn, what it says is missing, and how it ends."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from percolator_core.admin.trace import Change, Outcome, Run, Trace
from percolator_core.admin.trace.text import missing_parts
from percolator_core.cli.trace import _Drawing
from percolator_core.notation.typedtext import Rows
from tests.chains import chain_of

if TYPE_CHECKING:
    from tests.cli.conftest import Project


@pytest.fixture
def recording(project: Project) -> Project:
    file = project.folder / "chain" / "chain.yaml"
    file.write_text(f"{file.read_text()}trace: true\n")
    return project


def drawn(text: str) -> list[str]:
    """The lines, with one and the same number for each."""
    return [re.sub(r"\d+\.\d+ ms", "0 ms", line.rstrip()) for line in text.splitlines()]


def test_the_tree(recording: Project) -> None:
    recording.put(dream="to sleep")
    recording.ok("drain", "chain")
    with recording.connect() as db:
        [written] = db.history("docs", "dream", "text")
    at = datetime.fromtimestamp(written.commit_ts / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
    ended = recording.ok("trace", "chain", "docs", "dream")
    assert drawn(ended.out) == [
        f"docs dream text  written {at}",
        "└── split  began +0 ms, took 0 ms: words.count, words.dirty (notify)",
        "    └── total  words all dirty  began +0 ms, took 0 ms: words.total",
        "2 runs in 0 ms",
    ]
    assert not ended.err
    assert recording.ok("trace", "chain", "docs", "dream", "--column", "text").out == ended.out
    assert (
        recording.ok("trace", "chain", "docs", "dream", "--change", str(written.commit_ts)).out == ended.out
    )


def test_json(recording: Project) -> None:
    recording.put(dream="to sleep")
    recording.ok("drain", "chain")
    found = recording.ok("trace", "chain", "docs", "dream", "--json").json
    assert {name: found[name] for name in ("table", "row", "waiting", "quarantined", "unrecorded")} == {
        "table": "docs",
        "row": {"text": "dream"},
        "waiting": 0,
        "quarantined": 0,
        "unrecorded": 0,
    }
    [change] = found["changes"]
    split, total = found["runs"]
    assert change["outcomes"][0]["run"] == split["number"] == 1
    assert split["changes"][0]["outcomes"][0]["run"] == total["number"] == 2
    assert split["changes"][0]["row"] == {"text": "all"}
    assert total["cells"] == [{"table": "words", "row": {"text": "sum"}, "column": "total", "kind": "put"}]
    seconds = (total["commit_timestamp"] - change["timestamp"]) / 1e6
    assert found["seconds"] == pytest.approx(seconds)


def test_what_waits_and_what_is_in_quarantine(recording: Project) -> None:
    recording.put(storm="boom")
    assert drawn(recording.ok("trace", "chain", "docs", "storm").out)[1:] == [
        "└── split  waits for a worker",
        "no run yet, 1 waiting",
    ]
    recording("drain", "chain")
    assert drawn(recording.ok("trace", "chain", "docs", "storm").out)[1:] == [
        "└── split  in quarantine after 1 attempt: ValueError: no such word",
        "no run yet, 1 in quarantine",
    ]


def test_without_recording_it_says_how_to_turn_that_on(project: Project) -> None:
    project.put(dream="to sleep")
    project.ok("drain", "chain")
    ended = project.ok("trace", "chain", "docs", "dream")
    assert drawn(ended.out)[1:] == ["└── split  began +0 ms, took 0 ms", "1 run in 0 ms"]
    assert ended.err.startswith(
        "the writes of 1 run were not recorded: put 'trace: true' into chain/chain.yaml"
    )
    file = project.folder / "chain" / "chain.yaml"
    file.write_text(f"{file.read_text()}trace: true\n")
    assert "did not have 'trace: true'" in project.ok("trace", "chain", "docs", "dream").err


def test_what_is_cut_is_told(recording: Project) -> None:
    recording.put(dream="to sleep")
    recording.ok("drain", "chain")
    ended = recording.ok("trace", "chain", "docs", "dream", "--depth", "1")
    assert drawn(ended.out)[2] == "    └── and 1 more"
    assert ended.err == "1 change more not followed: --depth goes further\n"
    recording.ok("gc", "--keep", "0s")
    assert "safe point" in recording.ok("trace", "chain", "docs", "dream").err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["docs", "nobody"], 1, "row nobody of docs has no such change in an observed column, or "),
        (["docs", "dream", "--change", "1"], 1, "`percolator scan docs` lists the rows"),
        (["docs", "dream", "--column", "size"], 2, "no observer of words watches docs.size: they watch "),
        (["docs", "dream", "--change", "newest"], 2, "write latest, all, or a commit timestamp"),
        (["docs", "dream", "--depth", "0"], 2, "'--depth'"),
    ],
)
def test_refusals(recording: Project, arguments: list[str], code: int, words: str) -> None:
    recording.put(dream="to sleep")
    ended = recording("trace", "chain", *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.error


def run(number: int, *changes: Change, unfollowed: int = 0) -> Run:
    start = 10 * number
    return Run(
        number, "look", "t", b"r", "c", start, start + 5, 1, True, 0, (), changes, unfollowed, changes_seen=1
    )


def change(number: int, *runs: int) -> Change:
    outcomes = tuple(Outcome("look", "ran", each, 0.001) for each in runs)
    return Change("t", b"r%d" % number, "c", "put", 10 * number + 5, outcomes)


def draw(found: Trace) -> list[str]:
    console = Console(width=10_000, color_system=None)
    with console.capture() as capture:
        console.print(*_Drawing(found, Rows()).trees)
    return [line.strip("│├└─ ") for line in capture.get().splitlines()]


def test_a_run_of_two_causes_is_drawn_once() -> None:
    runs = (
        run(1, change(1, 2), change(2, 3)),
        run(2, change(3, 4)),
        run(3, change(4, 4)),
        run(4, change(5, 5)),
        run(5),
    )
    lines = draw(Trace("t", b"r", (change(0, 1),), runs, 0))
    assert [line for line in lines if "#4" in line] == [
        "look #4  t r3 c  began +1.0 ms, took 0.0 ms: wrote nothing",
        "look #4  t r4 c  began +1.0 ms, shown above",
    ]
    assert len([line for line in lines if "t r5 c" in line]) == 1
    assert len(lines) == 7


def test_many_branches_are_cut_and_counted() -> None:
    many = [change(number, number) for number in range(2, 32)]
    runs = run(1, *many, unfollowed=5), *(run(number) for number in range(2, 32))
    lines = draw(Trace("t", b"r", (change(0, 1),), runs, 0))
    assert len(lines) == 1 + 1 + 20 + 1
    assert lines[-1] == "and 15 more"


@pytest.mark.parametrize(
    ("changes", "words"), [(998, "--depth goes further"), (999, "follows 1,000 at most")]
)
def test_what_was_not_followed_says_why(changes: int, words: str) -> None:
    runs = (run(1, *(change(number) for number in range(changes)), unfollowed=5),)
    found = Trace("t", b"r", (change(0, 1),), runs, 0)
    [note] = missing_parts(found, chain_of(), "chain.yaml", "--depth goes further")
    assert note.startswith("5 changes more not followed: ")
    assert note.endswith(words)


def test_a_loop_may_be_a_thousand_runs_deep() -> None:
    runs = *(run(number, change(number, number + 1)) for number in range(1, 1200)), run(1200)
    [tree] = _Drawing(Trace("t", b"r", (change(0, 1),), runs, 0), Rows()).trees
    depth = 0
    while tree.children:
        [tree], depth = tree.children, depth + 1
    assert depth == 1200


def test_rows_of_an_export_queue_are_shown_with_their_key(recording: Project) -> None:
    file = recording.folder / "chain" / "chain.yaml"
    file.write_text(file.read_text().replace("tables:\n", "tables:\n  exports: {tablets: 1}\n"))
    (recording.folder / "chain" / "tell.yaml").write_text(
        "version: 1\nobserver: tell\nobserve: docs.title\nfunction: cli_export:tell\n"
        "writes: [exports.last, exports.payload]\n"
    )
    (recording.folder / "chain" / "ship.yaml").write_text(
        "version: 1\nobserver: ship\nobserve: [exports.last, exports.more]\nfunction: cli_export:ship\n"
        "writes: [exports.more, exports.done, exports.payload]\nfeedback: true\n"
    )
    (recording.folder / "cli_export.py").write_text(
        "from percolator_core.recipes import ExportQueue, SQLiteSink\n"
        "exports, sink = ExportQueue('exports'), SQLiteSink('sink.sqlite')\n"
        "def tell(t, cell): exports.add(t, cell.row, b'payload')\n"
        "def ship(t, cell): exports.export(t, cell, sink)\n"
    )
    recording.put()
    with recording.connect() as db, db.transaction() as t:
        t.set("docs", "tea", "title", b"Tea")
    recording.ok("drain", "chain")
    assert drawn(recording.ok("trace", "chain", "docs", "tea").out)[1:3] == [
        "└── tell  began +0 ms, took 0 ms: exports.last, exports.payload",
        (
            "    └── ship  exports hex:0003746561 (key tea) last  began +0 ms, took 0 ms: exports.done, "
            "exports.payload (delete)"
        ),
    ]
    runs = recording.ok("trace", "chain", "docs", "tea", "--json").json["runs"]
    assert {run["observer"]: run.get("key") for run in runs} == {"tell": None, "ship": {"text": "tea"}}
    # The printed row is a valid argument.
    assert "(key tea)" in recording.ok("trace", "chain", "exports", "hex:0003746561").out
