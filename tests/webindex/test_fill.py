"""Load documents for the web index, without building the index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core import Chain, connect
from percolator_core.admin.demand import demand

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_documents_wait_for_workers(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a", "b", "c"):
        (docs / f"{name}.html").write_text(f"<title>{name}</title><p>the page {name}")

    def fill() -> str:
        command = [sys.executable, "-m", "observers.webindex.demo.fill", "--docs", str(docs)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    assert fill() == "3 documents: 3 new, 0 changed, 0 unchanged, 0 deleted, 0 put aside"
    chain = Chain.load(ROOT / "observers/webindex", import_functions=False)
    with connect(f"embedded:{tmp_path}/.percolator", chain.name) as db:
        before = demand(db, chain).backlog
    assert before == 3
    (docs / "a.html").unlink()
    (docs / "b.html").write_text("<title>b</title><p>another page")
    assert fill() == "2 documents: 0 new, 1 changed, 1 unchanged, 1 deleted, 0 put aside"


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "observers.webindex.demo.fill", "--docs", str(tmp_path / "none")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
