"""Parse the options of the data source, which are texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar, get_args

from percolator_core.database import Database, connect
from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import MAX_TIMESTAMP
from percolator_core.store import StoreUrl
from percolator_core.store.url import absolute

RowMode = Literal["upsert", "insert", "update", "remove"]
Newer = Literal["keep", "overwrite", "fail"]
Value = TypeVar("Value", bound=str)

LEASE: Final = 600.0
"""Seconds for which the snapshot of a read stays pinned without a running task."""

FEWEST_PARTITIONS: Final = 4
"""The number of tasks of a read on a small machine, without the option ``partitions``."""

_PLACE: Final = frozenset({"url", "namespace", "table"})
_READ: Final = _PLACE | {"at", "columns", "filter", "lease", "partitions", "since"}
_WRITE: Final = _PLACE | {"lease", "mode_of_rows", "newer", "since", "skip_unchanged"}
# Spark also passes the stream's own options to the source.
_OF_STREAMS: Final = frozenset({"checkpointlocation", "queryname", "path"})


@dataclass(frozen=True, slots=True)
class Place:
    """A table in a namespace of a store. The text of the URL omits the password."""

    url: str = field(repr=False)
    namespace: str
    table: str

    def connect(self) -> Database:
        """Connect to the store."""
        return connect(self.url, self.namespace)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The rows and columns to read. Times are in microseconds; a ``since`` of 0 is before all commits."""

    place: Place
    at: int | None = None
    since: int | None = None
    columns: tuple[str, ...] | None = None
    filter: str = ""
    partitions: int = FEWEST_PARTITIONS
    lease: float = LEASE


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    place: Place
    mode: RowMode = "upsert"
    newer: Newer = "keep"
    skip_unchanged: bool = True
    since: int | None = None
    lease: float = LEASE


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises ConfigurationError, which names the option."""
    found = _known(given, _READ)
    columns = found.get("columns")
    # A task costs Spark 50 ms, and more than two tasks for each core do not speed up a server.
    partitions = max(FEWEST_PARTITIONS, 2 * (os.cpu_count() or 1))
    return ReadOptions(
        _place(found),
        at=_time("at", found["at"]) if "at" in found else None,
        since=_since(found["since"]) if "since" in found else None,
        columns=None if columns is None else _names(columns),
        filter=found.get("filter", ""),
        partitions=int(_number("partitions", found.get("partitions", str(partitions)), whole=True)),
        lease=_number("lease", found.get("lease", str(LEASE))),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ConfigurationError, which names the option."""
    found = _known(given, _WRITE)
    return WriteOptions(
        _place(found),
        _one_of("mode_of_rows", found.get("mode_of_rows", "upsert"), get_args(RowMode)),
        _one_of("newer", found.get("newer", "keep"), get_args(Newer)),
        _one_of("skip_unchanged", found.get("skip_unchanged", "true"), ("true", "false")) == "true",
        _time("since", found["since"]) if "since" in found else None,
        _number("lease", found.get("lease", str(LEASE))),
    )


def _known(given: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    found = {name.lower(): value for name, value in given.items()}
    for name in found:
        if name not in known | _OF_STREAMS:
            raise ConfigurationError(
                f"the data source percolator has no option {name!r} here: use {', '.join(sorted(known))}"
            )
    return found


def _place(found: Mapping[str, str]) -> Place:
    for name, example in (("url", "redis://127.0.0.1:6379/0"), ("table", "documents")):
        if not found.get(name):
            raise ConfigurationError(
                f"the option {name!r} is missing: add .option({name!r}, …), such as {example}"
            )
    # Executors and the driver may have different current directories.
    return Place(StoreUrl(absolute(found["url"])), found.get("namespace", "default"), found["table"])


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise ConfigurationError(
            "the option 'columns' is a list of names separated by commas, such as url,page_rank, "
            f"not {text!r}"
        )
    return names


def _since(text: str) -> int:
    return 0 if text == "0" else _time("since", text)


def _time(name: str, text: str) -> int:
    """Parse microseconds since 1970, or a time with its zone."""
    try:
        timestamp = int(text) if text.strip().isdecimal() else _microseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        timestamp = 0
    if not 0 < timestamp <= MAX_TIMESTAMP:
        raise ConfigurationError(
            f"the option {name!r} is a timestamp in microseconds, or a time with its zone such as "
            f"2026-01-31T12:00:00Z, not {text!r}"
        )
    return timestamp


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        return 0
    return (time - datetime.fromtimestamp(0, time.tzinfo)) // timedelta(microseconds=1)


def _number(name: str, text: str, *, whole: bool = False) -> float:
    try:
        number = float(int(text)) if whole else float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        what = "a whole number" if whole else "seconds,"
        raise ConfigurationError(f"the option {name!r} is {what} above 0, not {text!r}")
    return number


def _one_of(name: str, text: str, values: tuple[Value, ...]) -> Value:
    for value in values:
        if text.lower() == value:
            return value
    raise ConfigurationError(f"the option {name!r} is one of {', '.join(values)}, not {text!r}")
