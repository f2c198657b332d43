"""The sinks of an `ExportQueue`: the interface, here, and an implementation in each module.

Calls may be repeated, and may overlap. So a sink stores the newest sequence of every key with the key's data.
In one atomic step it compares the item's sequence with the stored one, and replaces sequence and data. It
ignores an item whose sequence is not above the stored one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from percolator_core.errors import PercolatorError
from percolator_core.tables.annotations import json_codec
from percolator_core.tables.model import Table


class NotTaken(PercolatorError):
    """The receiver of a sink refused an item; the message has the reason. The worker tries again."""


class Sink(Protocol):
    """A receiver of items: any object with this method."""

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Take an item durably: after the return the item leaves the queue.

        An item may come more than once, and a delayed run may pass an item that is older than a taken one.
        Threads and processes call this method at the same time, sometimes for one key. ``sequence`` is above
        0 and below 2**53, and rises with every item of a key. Return without an error if the sequence is not
        above the key's newest one. Raise any exception if the item was not taken, or if that is unknown.
        """


@lru_cache(maxsize=256)
def row_codec(model: type[Table]) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the functions that convert a row of a typed table to a payload and back."""
    return json_codec(model)


def digest_of(key: bytes) -> str:
    """Return a text of fixed length that stands for a long key."""
    return "sha256=" + hashlib.sha256(key).hexdigest()


def seconds(value: float, name: str = "timeout") -> float:
    """Return a length of time. Raises ValueError, which names the argument, unless it is above 0."""
    if not value > 0:
        raise ValueError(f"{name} is in seconds and above 0, not {value}")
    return value
