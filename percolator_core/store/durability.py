"""How safe a write must be before its commit is reported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.packing import Command

MAX_REPLICAS: Final = 100
"""More than one server feeds; what is above is a slip."""

MIN_TIMEOUT: Final = 0.001
"""Redis counts in milliseconds, and takes 0 for "without end"."""

MAX_TIMEOUT: Final = 3600.0
"""A commit whose replica is away for longer holds its locks, and its caller, to no purpose."""

_FORM: Final = re.compile(r"replicas=([0-9]{1,9})|(fsync)|timeout=([0-9]{1,9}(?:\.[0-9]{1,9})?)")


@dataclass(frozen=True, slots=True)
class Durability:
    """What must have a write before its commit is reported.

    ``replicas`` is how many replicas of each server must have it (0 to 100), ``fsync`` whether the server's
    own disk must, ``timeout`` how many seconds a commit waits for them (0.001 to 3600). With the default, a
    write is in the server's memory when it is reported, and on its way to disk and replicas.

    A commit that cannot be shown to be as safe as this raises `CommitUndetermined`, or `StoreUnavailable`
    while nothing was committed yet. Redis acknowledges what a replica has in memory, and a failover may still
    promote another replica: the figures of what is lost are in docs/explanation/reliability.md.

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
        """What a setting asks for; text is as for `parse`, and None takes ``otherwise``, which is text too.

        Raises:
            ConfigurationError: the text is something else.
            TypeError: it is neither a Durability nor text.
        """
        if isinstance(setting, Durability):
            return setting
        if setting is None or isinstance(setting, str):
            return cls.parse(otherwise if setting is None else setting)
        raise TypeError(
            f"durability is a Durability or text, not {_kind(setting)}: write durability='replicas=1,fsync'"
        )

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Read ``replicas=N``, ``fsync`` and ``timeout=SECONDS``, joined by commas; "" is the default.

        No message repeats the text: in a URL it may be the tail of a password that was not encoded.

        Raises:
            ConfigurationError: it is something else, or says one of them twice.
        """
        replicas, fsync, timeout = 0, False, 1.0
        seen: set[str] = set()
        for part in filter(None, text.split(",")):
            found = _FORM.fullmatch(part.strip())
            if found is None:
                raise ConfigurationError(
                    "the durability cannot be read: "
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
        """Whether a commit has to wait for anything."""
        return self.replicas > 0 or self.fsync

    def check_against(self, reply_timeout: float) -> None:
        """Raises ConfigurationError where a commit would wait for longer than a reply may take."""
        if self.required and self.timeout >= reply_timeout:
            raise ConfigurationError(
                f"durability: a commit may wait {self.timeout:g} s, a reply only {reply_timeout:g} s: "
                "give connect a longer timeout, or the durability a shorter one"
            )

    def requests(self, trace: Command, *, counts_disk: bool) -> list[Command]:
        """The commands that wait, the last of which counts.

        ``counts_disk`` says whether the server knows WAITAOF. One that does waits for no more than the last
        write of the same connection. A command that was repeated over a new one may find its work done, and
        write nothing; so ``trace`` writes something first, that is gone at once.
        """
        milliseconds = max(1, int(self.timeout * 1000))
        if not counts_disk:
            return [(b"WAIT", self.replicas, milliseconds)]
        if self.fsync:
            return [trace, (b"WAITAOF", 1, self.replicas, milliseconds)]
        return [trace, (b"WAIT", self.replicas, milliseconds)]

    def met_by(self, acknowledged: tuple[int, int] | None, *, counts_disk: bool) -> bool:
        """Whether disk and replicas that have acknowledged are enough."""
        if acknowledged is None:
            return not self.required
        disk, replicas = acknowledged
        # A server that does not know WAITAOF has to write each command to disk before it answers.
        return replicas >= self.replicas and (disk >= 1 or not (self.fsync and counts_disk))

    def shortfall(self, acknowledged: tuple[int, int] | None, *, counts_disk: bool) -> StoreUnavailable:
        """What to raise where disk and replicas that have acknowledged are not enough."""
        disk, replicas = acknowledged or (0, 0)
        missing = []
        if replicas < self.replicas:
            missing.append(f"on only {replicas} of {self.replicas} replicas")
        if self.fsync and counts_disk and not disk:
            missing.append("not on the server's disk")
        return StoreUnavailable(
            f"the write was {' and '.join(missing)} after {self.timeout:g} s: "
            "mend the replicas or the disk, or ask for less durability"
        )


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(number: float) -> str:
    try:
        return f"{number:g}"
    except OverflowError:
        return "one of hundreds of digits"
