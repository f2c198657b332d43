"""The messages between a parent and its worker processes: lines over private pipes.

The parent writes the `Orders` as one line of JSON, then commands such as `STOP`, each a line of one word. A
process writes reports. Each report is a JSON object with one member::

    {"up": NAME}                             chain and store are ready; the process's name in locks
    {"log": {"event": …, "level": …, …}}     a line for the parent's log
    {"counts": {"seconds": …, "observers": {NAME: {FIELD: NUMBER}}, "stalled": …, "begun": …,
     "times": {NAME: [SECONDS, NUMBER, …]}}}
    {"error": {"kind": …, "message": …, "traceback": …}}     the error that ends it
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import WorkerSettings

STOP: Final = b"stop"
"""Finish the current runs, then end."""

BREAK_OFF: Final = b"break off"
"""End at once, but give back all leased cells."""

FAILED: Final = 1
INTERRUPTED: Final = 130
"""The exit codes after a reported error, and after `BREAK_OFF`."""

BLOCKED: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that a process blocks until it has set handlers for them."""

_LONGEST_LINE: Final = 1 << 20
"""If an unfinished line has more bytes than this, it is treated as a complete line."""

_BYTES: Final = "base64 of bytes"

_COUNTED: Final = tuple(field.name for field in fields(ObserverCounts))

_ERRORS: Final[dict[str, type[PercolatorError]]] = {
    kind.__name__: kind for kind in (ConfigurationError, StoreUnavailable, PercolatorError)
}


@dataclass(frozen=True, slots=True)
class Orders:
    """The task of a worker process; ``parent`` is the id of the parent process.

    ``dead`` has the owner names of ended processes, as locks record them. The URL may contain a password, so
    the orders go through a pipe and not on a command line.
    """

    chain: str
    url: str
    namespace: str
    parent: int
    settings: WorkerSettings
    log_level: str = "info"
    dead: tuple[str, ...] = ()

    def to_line(self) -> bytes:
        """Return the orders as one line, with a line end."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Orders:
        """Invert `to_line`."""
        content = json.loads(line)
        return cls(**content | {"dead": tuple(content["dead"])})


class LineCutter:
    """Splits the bytes from a pipe into lines."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, received: bytes) -> list[bytes]:
        """Return the complete lines, without line ends."""
        *whole, self._begun = (self._begun + received).split(b"\n")
        if len(self._begun) > _LONGEST_LINE:
            whole.append(self.rest())
        return whole

    def rest(self) -> bytes:
        """Return and remove the unfinished line."""
        begun, self._begun = self._begun, b""
        return begun


def report(kind: str, content: Any) -> bytes:
    """Return a report as one line. Values that JSON does not have, except bytes, become their `repr`."""
    return json.dumps({kind: content}, default=_encoded, skipkeys=True).encode() + b"\n"


def read_report(line: bytes) -> tuple[str, Any] | None:
    """Return the kind and the content of a report; None if the line is no report."""
    try:
        ((kind, content),) = json.loads(line, object_hook=_decoded).items()
    except (ValueError, AttributeError):
        return None
    return kind, content


def counts_content(
    counts: Counts,
    seconds: float,
    *,
    times: Mapping[str, Histogram] | None = None,
    stalled: float = 0.0,
    begun: bool = True,
) -> dict[str, Any]:
    """Return the content of a report of counts; ``stalled`` and ``begun`` are the worker's."""
    return {
        "seconds": seconds,
        "observers": {name: asdict(one) for name, one in counts.observers.items()},
        "stalled": stalled,
        "begun": begun,
        "times": {name: one.flat() for name, one in (times or {}).items()},
    }


def read_counts(content: Mapping[str, Any]) -> Counts:
    """Invert `counts_content`. Counts that only the newer code of a new process has are ignored."""
    observers = {
        name: ObserverCounts(**{field: one[field] for field in _COUNTED if field in one})
        for name, one in content["observers"].items()
    }
    return Counts(observers, content["seconds"])


def read_times(content: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return the times of runs in a report of counts; {} if the process uses other buckets."""
    try:
        return {name: Histogram.from_flat(numbers) for name, numbers in content.get("times", {}).items()}
    except ValueError:
        return {}


def error_content(error: BaseException, trace: str) -> dict[str, str]:
    """Return the content of a report of an error."""
    kind = next((name for name, one in _ERRORS.items() if isinstance(error, one)), "")
    message = str(error) if kind else f"{type(error).__name__}: {error}"
    return {"kind": kind, "message": message, "traceback": trace}


def read_error(content: Mapping[str, str]) -> PercolatorError:
    """Return the error that ended a process. The traceback is attached to it as a note."""
    error = _ERRORS.get(content["kind"], PercolatorError)(content["message"])
    error.add_note(f"in a worker process:\n{content['traceback']}")
    return error


def _encoded(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(value).decode()}
    return repr(value)


def _decoded(found: dict[str, Any]) -> Any:
    return base64.b64decode(found[_BYTES]) if found.keys() == {_BYTES} else found
