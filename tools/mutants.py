# ruff: noqa: INP001
"""Plant the bugs of tests/mutants in a copy of the library, and check that a test catches each bug.

A mutant is a unified patch. Before its first ``---`` it has a sentence about the bug, and a line
``caught-by:`` for each test that must fail. A mutant is caught if exactly these tests fail, by an assertion
or an error of the library; a patch that merely breaks the code proves nothing. Without the patch the same
tests must pass.

``caught.json`` has a digest of each mutant that was caught: of its patch, of the files that the patch
changes, and of the files of its tests. With ``--changed``, only the mutants with another digest are examined,
and a sample of the others, which differs from day to day.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "mutants"
COPIED = (
    "percolator_core",
    "percolator_bench",
    "percolator_torture",
    "pyspark_percolator",
    "tests",
    "observers",
    "schemas",
    "pyproject.toml",
)
LETTERS = {
    "a": "a rollback leaves a tombstone, which refuses prewrites that arrive late",
    "b": "a repeated or late request changes nothing",
    "c": "garbage collection keeps the versions that snapshots see, and refuses older snapshots",
    "d": "locks are resolved before versions are dropped",
    "e": "the commit timestamp comes after the last prewrite",
    "f": "a run clears a mark only if the mark is older than the run",
    "g": "the acknowledgement is part of the observer's transaction, and Kafka's offset of its rows'",
    "h": "timestamps are unique and increase",
    "i": "only the primary's time to live decides if a lock has expired, and no lock ends without a record",
    "j": "runs and notifications are never lost",
    "k": "after a lost reply, the outcome is learned from the store, or reported as undetermined",
    "l": "a primary records the outcome, also if the transaction set and then deleted it",
    "m": "a retry runs the function again, on a new snapshot",
    "n": "scripts validate, then write; full memory stops scripts before their first write, except clean-ups",
    "o": "connections and the cluster: replies reach their callers, and only current replies count",
    "p": "durability: a commit is reported only when the required disks and replicas have it",
    "q": "a transaction reads its snapshot, whether a value was prefetched, cached or requested",
    "r": "after a rerun, each cell that it chose has a run that began later than the rerun",
    "s": "a typed row is there as a whole or not, tables change at one moment, a view equals its query",
    "t": "a read uses the definitions of the tables at its timestamp, or is refused",
    "u": "a chain runs the code of its own project, and leaves none of it loaded for the next chain",
    "v": "the store and the base are one table: nothing is lost between them, and damage is reported",
    "w": "a migration keeps each value, and each write beside it",
    "y": "a publication, and a restored backup, have exactly what was there at their time",
    "z": "the base stays right beside collections, paused readers, cancelled tasks, forks and lost files",
    "x": "reads outside transactions, and the runs of observers, see store and base as one table",
}
"""The promises that mutants break; a mutant's name begins with its promise's letter."""

AT_ONCE = 2

CAUGHT = FOLDER / "caught.json"
SAMPLE = 40
"""Of the mutants that have not changed, ``--changed`` examines this many."""

GUARD = '''\
"""Makes sure that the copy is tested, and nothing else."""
from pathlib import Path
import pytest
import percolator_core

def pytest_configure(config):
    if Path(percolator_core.__file__).resolve().parents[1] != Path(__file__).resolve().parent:
        pytest.exit(f"{percolator_core.__file__} was imported, not the copy", returncode=77)
'''

_PROOF = re.compile(
    r"AssertionError\b|assert |Failed: DID NOT RAISE|TimeoutError: |percolator_core\.errors\.\w+: "
)
_NO_PROOF = re.compile(r"the store answered:|from pytest-timeout")


@dataclass(frozen=True)
class Mutant:
    """A patch and its header. ``tests`` are pytest's node ids."""

    name: str
    bug: str
    tests: tuple[str, ...]
    patch: Path

    @property
    def letter(self) -> str:
        """The letter of the promise in `LETTERS` that the bug breaks."""
        return self.name[0]

    @property
    def touched(self) -> list[str]:
        """The files that the patch changes."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(encoding="utf-8"), re.MULTILINE)

    @property
    def digest(self) -> str:
        """A digest of the patch, of the files that it changes, and of the files of its tests."""
        names = sorted({*self.touched, *(test.partition("::")[0] for test in self.tests)})
        contents = [
            path.read_bytes() for path in (self.patch, *(ROOT / name for name in names)) if path.exists()
        ]
        return hashlib.sha256(b"\0".join(contents)).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """The result for a mutant: ``caught``, ``SURVIVED``, or the fault of the patch."""

    name: str
    letter: str
    bug: str
    caught_by: tuple[str, ...]
    seconds: float
    verdict: str


@dataclass(frozen=True)
class Run:
    """A run of pytest. Each dict has the node ids of tests as keys.

    ``failed`` has the message of each failed test, ``broken`` has the message of each test that had an error
    or was skipped, and ``passed`` has the seconds that each passed test took.
    """

    code: int
    failed: dict[str, str]
    broken: dict[str, str]
    passed: dict[str, float]
    output: str


def read(patch: Path) -> Mutant:
    """Read the mutant in a file. Raises ValueError if its header lacks a part, or its letter is unknown."""
    head, _, _ = patch.read_text(encoding="utf-8").partition("\n--- ")
    lines = [line for line in head.splitlines() if line]
    tests = [line.partition(":")[2].strip() for line in lines if line.startswith("caught-by:")]
    bug = " ".join(line for line in lines if not line.startswith("caught-by:"))
    if not bug or not all(tests) or not tests or patch.stem[0] not in LETTERS:
        raise ValueError(f"{patch.name}: say which bug it is, and after 'caught-by:' which test catches it")
    return Mutant(patch.stem, bug, tuple(tests), patch)


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants whose names begin with one of ``names``, by default all mutants, sorted by name."""
    found = [read(path) for path in sorted(FOLDER.glob("*.patch"))]
    return [one for one in found if not names or one.name.startswith(tuple(names))]


def changed(every: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants whose digest is not that in `CAUGHT`, and a sample of the others."""
    caught = _caught()
    known = [one for one in every if caught.get(one.name) == one.digest]
    today = random.Random(datetime.now(UTC).date().isoformat())
    again = today.sample(known, min(SAMPLE, len(known)))
    return [one for one in every if one not in known or one in again]


def record(every: Sequence[Mutant], verdicts: Sequence[Verdict]) -> None:
    """Write into `CAUGHT` the digests of the mutants that were caught; remove those that are gone."""
    caught = _caught()
    results = {one.name: one.verdict for one in verdicts}
    for mutant in every:
        if results.get(mutant.name) == "caught":
            caught[mutant.name] = mutant.digest
    names = {path.stem for path in FOLDER.glob("*.patch")}
    kept = {name: caught[name] for name in sorted(caught) if name in names}
    CAUGHT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _caught() -> dict[str, str]:
    return json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}


def apply(mutant: Mutant, folder: Path) -> str:
    """Plant the bug in the copy; return the fault of the patch, or an empty string."""
    # If the copy is inside another repository, git would relate the paths to that repository and do nothing.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--whitespace=nowarn", str(mutant.patch)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"stale: {done.stderr.strip().splitlines()[0]}"
    for name in mutant.touched:
        if (folder / name).read_bytes() == (ROOT / name).read_bytes():
            return f"stale: it does not change {name}"
        for compiled in (folder / name).parent.glob(f"__pycache__/{Path(name).stem}.*"):
            compiled.unlink()
    return ""


def run(folder: Path, tests: Sequence[str], patience: float | None = None) -> Run:
    """Run tests in a copy. ``patience`` is the seconds that a test waits for an event."""
    (folder / "mutant_guard.py").write_text(GUARD, encoding="utf-8")
    own = {} if patience is None else {"PERCOLATOR_TEST_PATIENCE": str(patience)}
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutant_guard", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--junitxml={report}", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    failed, broken, passed = {}, {}, {}
    for case in ET.parse(report).getroot().iter("testcase") if report.exists() else ():  # noqa: S314 - our own
        node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        outcomes = {child.tag: child.get("message", "") for child in case}
        if "error" in outcomes or "skipped" in outcomes:
            broken[node] = outcomes.get("error", "it was skipped")
        elif "failure" in outcomes:
            failed[node] = outcomes["failure"]
        else:
            passed[node] = float(case.get("time", 0))
    return Run(done.returncode, failed, broken, passed, done.stdout)


def judge(mutant: Mutant, found: Run) -> str:
    """Return ``caught``, ``SURVIVED``, or the reason why the failure proves nothing."""
    if found.code == 0 and not found.broken:
        return "SURVIVED"
    if found.code != 1 or found.broken:
        why = next(iter(found.broken.values()), found.output.strip().rpartition("\n")[2])
        return f"broken: {_first_line(why)}"
    if not set(mutant.tests) <= set(found.failed):
        return "SURVIVED in " + ", ".join(sorted(set(mutant.tests) - set(found.failed)))
    for message in found.failed.values():
        if _NO_PROOF.search(message) or not _PROOF.match(message):
            return f"broken: {_first_line(message)}"
    return "caught"


def _first_line(text: str) -> str:
    return (text.splitlines() or ["it failed without a message"])[0][:200]


def copy(source: Path, target: Path, copy_file: Callable[[str, str], object] = shutil.copy2) -> None:
    """Copy the files that a test needs."""
    target.mkdir(exist_ok=True)
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=copy_file)
        else:
            copy_file(str(source / name), str(target / name))


def examine(chosen: Sequence[Mutant], progress: Progress) -> list[Verdict]:
    """Check that the tests pass without the mutants, then judge the mutants, several at a time."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    bar = progress.add_task("the tests as they are", total=len(chosen))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        clean = Path(name) / "clean"
        copy(ROOT, clean)
        unharmed = run(clean, tests)
        if unharmed.code:
            progress.console.print(unharmed.output, markup=False)
        progress.update(bar, description="the mutants")

        def one(mutant: Mutant) -> Verdict:
            before = time.monotonic()
            verdict = _examine_one(mutant, clean, unharmed)
            progress.advance(bar)
            seconds = round(time.monotonic() - before, 1)
            return Verdict(mutant.name, mutant.letter, mutant.bug, mutant.tests, seconds, verdict)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(one, chosen))


def _examine_one(mutant: Mutant, clean: Path, unharmed: Run) -> str:
    absent = set(mutant.tests) - unharmed.passed.keys()
    if absent:
        return f"broken: without the bug, these do not pass: {', '.join(sorted(absent))}"
    # A mutant often makes a test wait for an event that does not happen, so the wait is short.
    patience = max(10.0, 10 * max(unharmed.passed[test] for test in mutant.tests))
    folder = clean.parent / mutant.name
    # A link is ten times cheaper than a copy. `git apply` and Python replace files, they never change one.
    copy(clean, folder, os.link)
    try:
        return apply(mutant, folder) or judge(mutant, run(folder, mutant.tests, patience))
    finally:
        shutil.rmtree(folder)


def table(verdicts: Sequence[Verdict]) -> Table:
    """The verdicts as a table."""
    made = Table("mutant", "bug", "caught by", "seconds", "verdict")
    for one in verdicts:
        tests = "\n".join(test.rpartition("::")[2] for test in one.caught_by)
        style = None if one.verdict == "caught" else "bold red"
        made.add_row(one.name, one.bug, tests, f"{one.seconds:.1f}", one.verdict, style=style)
    return made


def legend(chosen: Sequence[Mutant]) -> Table:
    """Return the promise of each letter, and its mutants."""
    made = Table("", "promise, or bug")
    for letter, promise in LETTERS.items():
        made.add_row(letter, promise, style="bold")
        for one in chosen:
            if one.letter == letter:
                made.add_row(one.name, one.bug)
    return made


def main() -> int:
    """Examine the mutants; return 0 if all were caught."""
    parser = argparse.ArgumentParser(description="Plant known bugs, and check that a test catches each bug.")
    parser.add_argument(
        "names", nargs="*", help="mutants such as a1, or a for all whose names begin with a; default: all"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the promise of each letter and its mutants, and end"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument(
        "--changed",
        action="store_true",
        help="only mutants that have changed since they were caught, and a sample",
    )
    parser.add_argument("--record", action="store_true", help="write down which mutants were caught")
    arguments = parser.parse_args()
    chosen = mutants(arguments.names)
    if arguments.changed:
        chosen = changed(chosen)
    if arguments.list:
        Console().print(legend(chosen), markup=False)
        return 0
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True) as progress:
        verdicts = examine(chosen, progress)
    if arguments.record:
        record(chosen, verdicts)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(one) for one in verdicts], indent=2) + "\n")
    else:
        Console().print(table(verdicts), markup=False)
    is_part = arguments.names or arguments.changed
    missing = "" if is_part else "".join(sorted(set(LETTERS) - {one.letter for one in verdicts}))
    if missing:
        errors.print(f"no mutant for: {missing}")
    caught = sum(1 for one in verdicts if one.verdict == "caught")
    errors.print(f"{caught} of {len(verdicts)} mutants were caught")
    return 0 if verdicts and caught == len(verdicts) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
