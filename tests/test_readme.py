"""The README is correct: its example project runs, its commands exist, its links have targets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from percolator_core.cli.app import COMMANDS, installed

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(marker: str) -> list[tuple[str, str]]:
    """Return the fenced blocks behind ``<!-- marker … -->``: the rest of the comment, and the text."""
    pattern = rf"<!-- {marker}:? ?(.*?) ?-->\n```\w*\n(.*?)```"
    return re.findall(pattern, README, re.DOTALL)


def write_project(folder: Path, *packages: str) -> None:
    """Write the README's first project; the ``packages`` also get an ``__init__.py``."""
    files = blocks("file")
    assert len(files) == 3
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for package in packages:
        (folder / package / "__init__.py").touch()


def test_the_first_observer_fits_on_fifteen_lines() -> None:
    assert sum(len(text.splitlines()) for _, text in blocks("file")) <= 15


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^`?percolator (\w+)", README, re.MULTILINE))))
def test_its_commands_exist(command: str) -> None:
    assert command in {*COMMANDS, *installed()}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_its_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_the_wheel_that_it_installs_has_the_name_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"percolator_core-([\d.]+)-", README)) == {project["version"]}
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", README, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(named))) <= set(project["optional-dependencies"])


def test_it_has_ten_figures_at_most() -> None:
    section = README.split("## Figures")[1].split("## ")[0]
    assert len(re.findall(r"^\| ", section, re.MULTILINE)) - 1 <= 10
