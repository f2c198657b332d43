"""The setting ``durability`` of a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.packing import Command

MAX_REPLICAS: Final = 100
"""More replicas than one server can feed; a higher number is a mistake."""

MIN_TIMEOUT: Final = 0.001
"""Seconds. Redis counts in milliseconds, and 0 would mean no limit."""

MAX_TIMEOUT: Final = 3600.0
"""Seconds. A commit that waits longer only blocks other clients with its locks."""

_FORM: Final = re.compile(r"replicas=([0-9]{1,9})|(fsync)|timeout=([0-9]{1,9}(?:\.[0-9]{1,9})?)")


@dataclass(frozen=True, slots=True)
class Durability:
    """How safe a write must be before its commit is reported.

    ``replicas`` is the number of replicas of each server that must have the write (0 to 100). With ``fsync``
    it must be on the server's own disk, too. ``timeout`` is how many seconds a commit waits for both (0.001
    to 3600). With the default, a commit is reported once its writes are in the server's memory. They are
    then on their way to disk and replicas.

    If a commit cannot be shown to be as safe as this, it raises `CommitUndetermined`, or `StoreUnavailable`
    if nothing was committed yet. Even an acknowledged write may get lost: a replica may acknowledge a write
    that it has only in memory, and a failover may promote another replica. docs/explanation/reliability.md
    says how much was lost in measurements.

    Raises:
        ConfigurationError: a number is out of its range.
        TypeError: ``replicas`` is no int, ``fsync`` no bool, or ``timeout`` no number.
    """

    replicas: int = 0
    fsync: bool = False
    timeout: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise TypeError(f"durability: replicas is an int, not {_kind(self.replicas)}: write replicas=1")
        if not isinstance(self.fsync, bool):
            raise TypeError(f"durability: fsync is a bool, not {_kind(self.fsync)}: write fsync=True")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            raise TypeError(f"durability: timeout is a number, not {_kind(self.timeout)}: write timeout=2.5")
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise ConfigurationError(
                f"durability: replicas is 0 to {MAX_REPLICAS}, not {_shown(self.replicas)}"
            )
        if not MIN_TIMEOUT <= self.timeout <= MAX_TIMEOUT:
            raise ConfigurationError(
                f"durability: timeout is {MIN_TIMEOUT:g} to {MAX_TIMEOUT:g} seconds, "
                f"not {_shown(self.timeout)}"
            )

    @classmethod
    def of(cls, setting: Durability | str | None, otherwise: str = "") -> Durability:
        """Return a setting, or parse it. For None, parse ``otherwise``. Raises as `parse`, and TypeError."""
        if isinstance(setting, Durability):
            return setting
        if setting is None or isinstance(setting, str):
            return cls.parse(otherwise if setting is None else setting)
        raise TypeError(
            f"durability is a Durability or text, not {_kind(setting)}: write durability='replicas=1,fsync'"
        )

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Parse ``replicas=N``, ``fsync`` and ``timeout=SECONDS``, joined by commas; "" is the default.

        No message repeats the text: in a URL it may be the end of a password that was not encoded.

        Raises:
            ConfigurationError: the text has an unknown part, or the same part twice.
        """
        replicas, fsync, timeout = 0, False, 1.0
        seen: set[str] = set()
        for part in filter(None, text.split(",")):
            found = _FORM.fullmatch(part.strip())
            if found is None:
                raise ConfigurationError(
                    "the durability cannot be parsed: "
                    "write replicas=1, fsync, timeout=2.5, or several joined by commas"
                )
            name = found[0].partition("=")[0]
            if name in seen:
                raise ConfigurationError(f"the durability says {name} twice: leave one out")
            seen.add(name)
            replicas = int(found[1]) if found[1] else replicas
            fsync = fsync or bool(found[2])
            timeout = float(found[3]) if found[3] else timeout
        return cls(replicas, fsync, timeout)

    @property
    def required(self) -> bool:
        """True if a commit has to wait for replicas or the disk."""
        return self.replicas > 0 or self.fsync

    def check_against(self, reply_timeout: float) -> None:
        """Raise ConfigurationError if a commit might wait for longer than a reply may take."""
        if self.required and self.timeout >= reply_timeout:
            raise ConfigurationError(
                f"durability: a commit may wait {self.timeout:g} s, a reply only {reply_timeout:g} s: "
                "give connect a longer timeout, or the durability a shorter one"
            )

    def requests(self, trace: Command, *, counts_disk: bool) -> list[Command]:
        """Return the commands that wait for the disk and the replicas; the reply to the last one counts.

        ``counts_disk`` is True if the server has WAITAOF. Such a server waits only for the newest write of
        the same connection. But a command that is repeated over a new connection may find its work done and
        write nothing. So ``trace`` first writes a key that expires at once.
        """
        milliseconds = max(1, int(self.timeout * 1000))
        if not counts_disk:
            return [(b"WAIT", self.replicas, milliseconds)]
        wait = (b"WAITAOF", 1) if self.fsync else (b"WAIT",)
        return [trace, (*wait, self.replicas, milliseconds)]

    def met_by(self, acknowledged: tuple[int, int] | None, *, counts_disk: bool) -> bool:
        """Return True if enough disks and replicas have acknowledged."""
        if acknowledged is None:
            return not self.required
        disk, replicas = acknowledged
        # A server without WAITAOF was set up to write each command to disk before it replies.
        return replicas >= self.replicas and (disk >= 1 or not (self.fsync and counts_disk))

    def shortfall(self, acknowledged: tuple[int, int] | None, *, counts_disk: bool) -> StoreUnavailable:
        """Return the error for a write that too few disks and replicas have acknowledged."""
        disk, replicas = acknowledged or (0, 0)
        missing = []
        if replicas < self.replicas:
            missing.append(f"on only {replicas} of {self.replicas} replicas")
        if self.fsync and counts_disk and not disk:
            missing.append("not on the server's disk")
        return StoreUnavailable(
            f"the write was {' and '.join(missing)} after {self.timeout:g} s: "
            "repair the replicas or the disk, or ask for less durability"
        )


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(number: float) -> str:
    try:
        return f"{number:g}"
    except OverflowError:
        return "one of hundreds of digits"
