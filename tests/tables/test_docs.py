"""docs/tables.md does what it says: its programs run, one after another, and print what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core import Database, Transaction

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")


def test_its_programs_print_what_stands_there(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    program = "".join(text for language, text in blocks if language == "python")
    expected = "".join(text for language, text in blocks if not language)
    done = subprocess.run(
        [sys.executable, "-c", program + "db.close()\n"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == expected


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_its_links_lead_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target.partition("#")[0]).is_file()


def test_the_calls_that_it_names_are_there() -> None:
    for owner, name in re.findall(r"`(t|db)\.(\w+)\(", PAGE):
        assert hasattr(Transaction if owner == "t" else Database, name), name
