"""A folder with a chain whose views are in Python, beside the modules that it names."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from percolator_core import Chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest


class ChainFolder:
    """The chain ``name``; the names of its modules begin with ``name`` and ``_``."""

    def __init__(self, top: Path, name: str) -> None:
        self.top = top
        self.name = name
        self.folder = top / name
        (self.folder / "views").mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        (self.top / name).write_text(text)

    def load(self, import_functions: bool = True) -> Chain:
        self.forget()
        return Chain.load(self.folder, import_functions)

    def forget(self) -> None:
        for name in [name for name in sys.modules if name.startswith(f"{self.name}_")]:
            del sys.modules[name]

    def imported_of(self, *modules: str) -> str:
        """Load the chain without its code in another process; return which of ``modules`` were imported."""
        program = (
            "import sys; from percolator_core import Chain; "
            f"Chain.load('{self.name}', import_functions=False); "
            f"print({set(modules)} & set(sys.modules))"
        )
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=self.top
        ).stdout.strip()


F = TypeVar("F", bound=ChainFolder)


@contextmanager
def imported_from(made: Callable[[Path], F], top: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[F]:
    """Make the folder, from which its modules are imported until the block ends."""
    monkeypatch.chdir(top)
    monkeypatch.syspath_prepend(str(top))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = made(top)
    yield folder
    folder.forget()
