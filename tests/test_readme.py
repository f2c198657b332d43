"""The README does what it says: its example project runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core.cli.app import COMMANDS, installed

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(marker: str) -> list[tuple[str, str]]:
    """The fenced blocks behind ``<!-- marker … -->``: what follows the marker, and the text."""
    pattern = rf"<!-- {marker}:? ?(.*?) ?-->\n```\w*\n(.*?)```"
    return re.findall(pattern, README, re.DOTALL)


def write_project(folder: Path, *packages: str) -> None:
    """The README's first project, word for word; the ``packages`` get an ``__init__.py`` besides."""
    files = blocks("file")
    assert len(files) == 3
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for package in packages:
        (folder / package / "__init__.py").touch()


def test_the_first_observer_runs_as_printed(tmp_path: Path) -> None:
    write_project(tmp_path)
    ((_, program),) = blocks("run")
    ((_, printed),) = blocks("prints")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout == printed


def test_the_first_observer_fits_on_fifteen_lines() -> None:
    assert sum(len(text.splitlines()) for _, text in blocks("file")) <= 15


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^`?percolator (\w+)", README, re.MULTILINE))))
def test_its_commands_exist(command: str) -> None:
    assert command in {*COMMANDS, *installed()}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_its_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
