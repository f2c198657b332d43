"""The files of a chain's views. They are read without the parser, which takes long to import."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

VIEWS: Final = "views"
"""The folder of the views in the folder of a chain."""


def view_files(folder: Path) -> list[Path]:
    """Return the files of a chain's views, sorted; a chain without the folder has none."""
    return sorted((folder / VIEWS).glob("*.sql"))


def view_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the file of each view, in hexadecimal, by name."""
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in view_files(folder)}
