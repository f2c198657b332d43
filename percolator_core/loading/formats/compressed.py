"""Plain and gzip-compressed files, on this machine or in an object store."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast
from urllib.parse import urlsplit

from percolator_core.base.location import is_remote
from percolator_core.loading.objects import open_object

UNREADABLE: Final = (OSError, EOFError, zlib.error)
"""Errors of a file that is missing, incomplete or damaged."""


def open_file(path: str) -> BinaryIO:
    """Open a file for reading. Raises OSError."""
    return open_object(path) if is_remote(path) else Path(path).open("rb")


def open_bytes(path: str) -> BinaryIO:
    """Open a file for reading; decompress it if its name ends with ``.gz``."""
    if not is_compressed(path):
        return open_file(path)
    return cast("BinaryIO", gzip.open(open_object(path) if is_remote(path) else path))


def is_compressed(path: str) -> bool:
    """Return True if the name of a file ends with ``.gz``, in small or capital letters."""
    return (urlsplit(path).path if is_remote(path) else path).lower().endswith(".gz")
