from __future__ import annotations

import json
from pathlib import Path

import pytest

from observers.pagedeps.__main__ import main
from observers.pagedeps.demo import run
from percolator_core import Chain
from tests.pagedeps.conftest import CHAIN, page, sheet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "index.html": page("s.css", "missing.png"),
        "deep/a b.html": page("../s.css", "../i.png"),
        "deep/c.htm": page("../i.png"),
        "s.css": sheet(),
        "i.png": "1",
        "notes.txt": "no resource",
    }
    for name, text in files.items():
        (tmp_path / "html" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "html" / name).write_text(text)
    return tmp_path / "html"


def test_the_demonstration(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    call = [str(folder), "--out", str(out), "--state", str(state), "--json"]
    assert main(call) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["pages"], report["resources"], report["dependencies"], report["missing"]) == (3, 2, 5, 1)
    assert report["violations"] == []
    assert [(step["address"], step["rendered"], step["others"]) for step in report["steps"]] == [
        ("", 3, 0),
        ("s.css", 2, 0),
        ("s.css", 0, 0),
        ("i.png", 2, 0),
        ("i.png", 0, 0),
        ("missing.png", 1, 0),
    ]
    assert "data:image/png" in (out / "deep/a b.html").read_text(encoding="utf-8-sig")
    # The second load undoes the changes in the store, and loads the changes of the folder.
    (folder / "deep/c.htm").unlink()
    again = run(folder, state=state)
    assert (again.pages, again.steps[0].rendered, again.violations) == (2, 2, [])


def test_the_table_says_who_was_rendered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "only the 2 pages that depend on it" in said
    assert "Recomputed everything from the files: no difference." in said


def test_a_wrong_call_says_what_to_do(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert main([str(folder), "--out", str(folder / "out")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has no HTML files: name another folder" in said
    assert "is inside the folder that is read: name another folder" in said


def test_the_chain_and_its_loops() -> None:
    chain = Chain.load(CHAIN)
    closing = {edge for edge in chain.graph.edges if chain.graph.edges[edge].get("feedback")}
    assert ("fan_out", "resources.more") in closing
    assert ("fan_out", "resources.touched") in closing
