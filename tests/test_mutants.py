"""Each known bug, planted in a copy of the library, is caught by the test that is named for it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_tool", ROOT / "tools" / "mutants.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_mutant_of_every_letter(tool: ModuleType) -> None:
    assert {path.name[0] for path in PATCHES} == set(tool.LETTERS)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_mutant_still_applies(patch: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)],
        cwd=ROOT,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"write the patch again: {done.stderr}"


@pytest.mark.parametrize(
    ("code", "failed", "broken", "verdict"),
    [
        (0, {}, {}, "SURVIVED"),
        (1, {"t": "AssertionError: assert 1 == 2"}, {}, "caught"),
        (1, {"t": "assert False"}, {}, "caught"),
        (1, {"t": "Failed: DID NOT RAISE <class 'X'>"}, {}, "caught"),
        (1, {"t": "percolator_core.errors.LockTimeout: later"}, {}, "caught"),
        (1, {"other": "AssertionError: "}, {}, "SURVIVED in t"),
        (1, {"t": "NameError: x"}, {}, "broken: NameError: x"),
        (1, {"t": "percolator_core.errors.PercolatorError: the store answered: ERR"}, {}, "broken: perc"),
        (1, {"t": "Failed: Timeout (>60.0s) from pytest-timeout."}, {}, "broken: Failed"),
        (1, {}, {"t": "ImportError: x"}, "broken: ImportError: x"),
        (0, {}, {"t": "it was skipped"}, "broken: it was skipped"),
        (77, {}, {}, "broken: not the copy"),
    ],
)
def test_only_the_right_failure_counts(
    tool: ModuleType, code: int, failed: dict[str, str], broken: dict[str, str], verdict: str
) -> None:
    mutant = tool.Mutant("a1", "a bug", ("t",), Path())
    found: str = tool.judge(mutant, tool.Run(code, failed, broken, {}, "output\nnot the copy\n"))
    assert found.startswith(verdict)


def test_a_mutant_is_examined_again_after_a_change(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "CAUGHT", tmp_path / "caught.json")
    every = tool.mutants(["a", "b"])
    first, second, *others = every

    def verdict(mutant: Any, said: str) -> Any:
        return tool.Verdict(mutant.name, mutant.letter, mutant.bug, mutant.tests, 1.0, said)

    said = [verdict(first, "SURVIVED"), *(verdict(one, "caught") for one in (second, *others))]
    tool.record(every, said)
    monkeypatch.setattr(tool, "SAMPLE", 0)
    assert tool.changed(every) == [first]
    caught = json.loads(tool.CAUGHT.read_text())
    tool.CAUGHT.write_text(json.dumps({**caught, second.name: "another digest", "gone": "0"}))
    assert tool.changed(every) == [first, second]
    monkeypatch.setattr(tool, "SAMPLE", 1)
    assert len(tool.changed(every)) == 3
    tool.record([first], [verdict(first, "caught")])
    assert "gone" not in json.loads(tool.CAUGHT.read_text())


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_the_mutants_that_have_changed_and_a_sample_are_caught() -> None:
    """`make mutants` examines all of them and writes down which were caught."""
    command = [sys.executable, str(ROOT / "tools" / "mutants.py"), "--json", "--changed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    verdicts = {one["name"]: one["verdict"] for one in json.loads(done.stdout)}
    assert {name: said for name, said in verdicts.items() if said != "caught"} == {}
    assert done.returncode == 0, done.stderr
