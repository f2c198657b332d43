"""docs/recipes.md does what it says: its projects are written down as printed, and its programs run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core import recipes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")

_RUNNER = """
import contextlib, io, json, sys
printed = []
for program in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    printed.append(out.getvalue())
print(json.dumps(printed))
"""
"""All programs in one process: the imports take longer than they do."""


def test_its_programs_print_what_stands_there(tmp_path: Path) -> None:
    programs: list[str] = []
    expected: list[str] = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        name = re.match(r"# (\S+\.(?:yaml|py))\n", text)
        if not language:
            expected[-1] = text
        elif name is not None:
            path = tmp_path / name[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            assert language == "python"
            programs.append(text)
            expected.append("")
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        cwd=tmp_path,
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == expected
    assert len(expected) == 6


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_its_links_lead_somewhere(target: str) -> None:
    file, _, heading = target.partition("#")
    text = (ROOT / "docs" / file).read_text(encoding="utf-8") if file else PAGE
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert not heading or heading in {name.lower().replace(" ", "-") for name in headings}


@pytest.mark.parametrize("name", ["CombineQueue", "Counter", "ExportQueue", "SecondaryIndex"])
def test_it_names_each_public_call(name: str) -> None:
    recipe = getattr(recipes, name)
    for call in vars(recipe):
        if not call.startswith("_"):
            assert f"`{call}(" in PAGE
