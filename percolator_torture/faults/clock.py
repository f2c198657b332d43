"""A server's clock that a test can set: the real one plus an offset, which applies to all clients at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from percolator_core import scripts
from percolator_core.layout.keys import Keyspace
from percolator_core.scripts import Script
from percolator_core.store import Store

HOUR: Final = 3600.0
"""Seconds by which clocks are set back."""

_SOURCE: Final = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2] + tonumber(redis.call('GET', '{key}') or '0')
end
"""


class FakeClock:
    """The clock of one namespace, on a single server: scripts read its offset from a key.

    Pass `load_scripts` to the `Store` of every client of the namespace, as its argument ``load_scripts``.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        # The prefix is percent-encoded, so nothing in it ends a Lua string.
        self.key: Final = keyspace.prefix + b"clock"
        self._source = _SOURCE.replace("{key}", self.key.decode())
        self._assembled: dict[bool, Mapping[str, Script]] = {}

    def load_scripts(self, shebang: bool) -> Mapping[str, Script]:
        """Load scripts as `scripts.load` does, with this clock in place of the real one."""
        found = self._assembled.get(shebang)
        if found is None:
            found = self._assembled[shebang] = scripts.assemble(shebang, {"clock": self._source})
        return found

    def set_back(self, store: Store, seconds: float) -> None:
        """Set the clock back by ``seconds``, from the next script on; forward, if negative."""
        self.set_forward(store, -seconds)

    def set_forward(self, store: Store, seconds: float) -> None:
        """Set the clock forward by ``seconds``, from the next script on."""
        # Not ``store.call_apart``: a `FaultyStore` would inject faults into this operation of the test.
        Store.call_apart(store, (b"INCRBY", self.key, int(seconds * 1_000_000)))
