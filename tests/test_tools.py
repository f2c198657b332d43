"""The pictures of the layers are up to date, and the hooks of pre-commit are local and of .venv."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tools.architecture import PICTURES, ROOT, layers, picture


@pytest.mark.parametrize("contract", sorted(PICTURES))
def test_the_picture_of_the_layers_is_up_to_date(contract: str) -> None:
    drawn = (ROOT / "docs" / "assets" / PICTURES[contract]).read_text(encoding="utf-8")
    assert drawn == picture(layers(contract)), "draw it again: make picture"


def test_the_picture_has_every_layer_and_only_imports_that_go_down() -> None:
    found = layers("layers")
    line = {name: number for number, row in enumerate(found.rows) for name in row}
    packages = {path.stem for path in (ROOT / "percolator_core").glob("[a-z]*") if path.suffix in {"", ".py"}}
    assert set(line) == packages
    arrows = found.arrows()
    assert ("archive", "maintenance") in arrows
    assert all(line[importer] < line[imported] or line[importer] == 0 for importer, imported in arrows)


def test_the_hooks_of_pre_commit_fetch_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")


def test_the_quick_tests_are_there() -> None:
    script = Path(ROOT / "tools" / "quick.sh").read_text(encoding="utf-8")
    named = re.findall(r"tests/[^{\s]+(?=\s)", script)
    files = re.search(r"tests/test_\{([\w,]+)\}\.py", script)
    assert files
    named += [f"tests/test_{name}.py" for name in files[1].split(",")]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
