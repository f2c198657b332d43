"""Plain and gzip-compressed files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

UNREADABLE: Final = (OSError, EOFError, zlib.error)
"""Errors of a file that is missing, incomplete or damaged."""


def open_bytes(path: str) -> BinaryIO:
    """Open a file for reading; decompress it if its name ends with ``.gz``."""
    return cast("BinaryIO", gzip.open(path)) if path.endswith(".gz") else Path(path).open("rb")
