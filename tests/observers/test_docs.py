"""The example of typed tables in docs/observers.md is a project that runs, and prints what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from percolator_core.observers.declaration import ChainDeclaration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observers.md").read_text(encoding="utf-8")


def test_the_example_of_typed_tables_prints_what_stands_there(tmp_path: Path) -> None:
    section = PAGE.partition("\n## Typed tables\n")[2].partition("\n## ")[0]
    program = expected = ""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
        name = re.match(r"# (\S+\.(?:yaml|py))\n", text)
        if name is not None:
            path = tmp_path / name[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif language:
            program = text
        else:
            expected = text
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (expected, "")


def test_each_key_of_a_chain_is_described_as_in_its_schema() -> None:
    table = PAGE.partition("\n## chain.yaml\n")[2].partition("\n\nThere is")[0]
    described = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", table, re.MULTILINE))
    declared = {name: field.description for name, field in ChainDeclaration.model_fields.items()}
    assert {name: text.replace("`", "'") for name, text in described.items()} == declared
