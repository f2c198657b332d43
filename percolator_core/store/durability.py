"""How safe a write must be before its commit is reported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_core.store.exchange import Command

MAX_REPLICAS: Final = 100

_FORM: Final = re.compile(r"replicas=(\d+)|(fsync)|timeout=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Durability:
    """What must have a write before its commit is reported.

    ``replicas`` is how many replicas of each server must have it (0 to 100), ``fsync`` whether the server's
    own disk must, ``timeout`` how many seconds a commit waits for them. With the default, a write is in the
    server's memory when it is reported, and on its way to disk and replicas.

    A commit that cannot be shown to be as safe as this raises `CommitUndetermined`, or `StoreUnavailable`
    while nothing was committed yet. Redis acknowledges what a replica has in memory, and a failover may still
    promote another replica: the figures of what is lost are in docs/reliability.md.
    """

    replicas: int = 0
    fsync: bool = False
    timeout: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise ConfigurationError(f"durability: replicas is 0 to {MAX_REPLICAS}, not {self.replicas}")
        if not 0 < self.timeout <= 3600:
            raise ConfigurationError(f"durability: timeout is above 0 to 3600 seconds, not {self.timeout:g}")

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Read ``replicas=N``, ``fsync`` and ``timeout=SECONDS``, joined by commas; "" is the default.

        Raises:
            ConfigurationError: it is something else.
        """
        replicas, fsync, timeout = 0, False, 1.0
        for part in filter(None, text.split(",")):
            found = _FORM.fullmatch(part.strip())
            if found is None:
                raise ConfigurationError(
                    f"durability {text!r}: write replicas=1, fsync, timeout=2.5, or several joined by commas"
                )
            replicas = int(found[1]) if found[1] else replicas
            fsync = fsync or bool(found[2])
            timeout = float(found[3]) if found[3] else timeout
        return cls(replicas, fsync, timeout)

    @property
    def required(self) -> bool:
        """Whether a commit has to wait for anything."""
        return self.replicas > 0 or self.fsync

    def requests(self, key: bytes, *, counts_disk: bool) -> list[Command]:
        """The commands that wait, the last of which counts; they go to the server that has the key.

        ``counts_disk`` says whether the server knows WAITAOF. One that does waits for no more than the last
        write of the same connection. A command that was repeated over a new one may find its work done, and
        write nothing; so something is written that is gone at once.
        """
        milliseconds = max(1, int(self.timeout * 1000))
        if not counts_disk:
            return [(b"WAIT", self.replicas, milliseconds)]
        trace = (b"SET", key + b"sync", b"", b"PX", 1)
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
