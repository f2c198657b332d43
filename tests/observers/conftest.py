"""A project in a temporary folder: a chain, its observers, and the module of their functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAIN = """\
version: 1
chain: web
tables:
  documents: {tablets: 4}
  clusters: {notify_only: [dirty]}
  links: {}
"""

FUNCTIONS = """\
LIMIT = 3
class Thing:
    def __init__(self, a, b): pass
def process(t, cell): return None
def three(t, cell, more): return None
def flexible(*args, more=1): return None
async def later(t, cell): return None
def lazy(t, cell): yield
"""


class Project:
    """Writes the files of a chain, and loads it from the project's top folder."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.folder = Path("observers/web")
        (top / self.folder).mkdir(parents=True)
        self.write("chain.yaml", CHAIN)
        (top / "steps.py").write_text(FUNCTIONS)

    def write(self, name: str, text: str | bytes) -> None:
        (self.top / self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def observer(self, name: str, rest: str, function: str = "steps:process") -> None:
        self.write(f"{name}.yaml", f"version: 1\nobserver: {name}\nfunction: {function}\n{rest}\n")

    def load(self, import_functions: bool = True) -> Chain:
        return Chain.load(self.folder, import_functions=import_functions)

    def complaints(self) -> list[str]:
        with pytest.raises(ConfigurationError) as raised:
            self.load()
        return str(raised.value).split("\n")

    def complaint(self) -> str:
        """The one complaint; its file is given without the folder."""
        lines = self.complaints()
        assert len(lines) == 1, lines
        return lines[0].removeprefix(f"{self.folder}/")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _forget()  # what tests of other folders have left
    yield Project(tmp_path)
    _forget()


def _forget() -> None:
    """The modules of projects: each test has some of these names of its own."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("steps", "app"):
            del sys.modules[name]
