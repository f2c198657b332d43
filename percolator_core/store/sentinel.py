"""Find the current master of a service by asking its sentinels."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import AuthenticationError, RedisError

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.refusals import LOST, is_read_only
from percolator_core.store.request import Exchange
from percolator_core.store.topology import Ask, Endpoint, ReplaceableServers


class SentinelMaster(ReplaceableServers):
    """The master of a service that sentinels watch."""

    def __init__(self, sentinels: Sequence[Endpoint], service: str, ask: Ask, url: str) -> None:
        """``sentinels`` are asked in turn. Raises as `discover`."""
        super().__init__(ask, url)
        self._sentinels = list(sentinels)
        self._service = service
        self._endpoint: Endpoint | None = None
        refused = self._look()
        if refused is not None:
            raise self._unusable(refused)
        if self._endpoint is None:
            raise self._unknown()

    def endpoint(self, slot: int) -> Endpoint:  # noqa: ARG002 - it has them all
        """Return the newest known master."""
        assert self._endpoint is not None
        return self._endpoint

    def heal(self, exchange: Exchange) -> None:
        """Ask the sentinels again after a lost connection, or when the server has become a replica."""
        if isinstance(exchange.trouble, LOST) or is_read_only(exchange.trouble):
            super().heal(exchange)

    def _has_its_place(self, endpoint: Endpoint) -> bool:
        return endpoint == self._endpoint

    def _ask_around(self, doubtful: Endpoint | None) -> Exception | None:  # noqa: ARG002 - a master is not asked
        refused: Exception | None = None
        answered = False
        for sentinel in list(self._sentinels):
            try:
                found = self._ask(sentinel, (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service))
            except (RedisError, OSError) as error:
                refused = error
                continue
            answered = True
            if found is not None:
                # In the future, this sentinel is asked first.
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                master = Endpoint(found[0].decode(), int(found[1]))
                if master != self._endpoint:
                    self._endpoint = master
                    self.generation += 1
                break
        return None if answered else refused

    def _unusable(self, refused: Exception) -> Exception:
        if isinstance(refused, AuthenticationError):
            return StoreUnavailable(
                f"the sentinels of {self._url} refuse the login ({refused}): check ?sentinel_password="
            )
        if "unknown command" in str(refused):
            return ConfigurationError(
                f"{self._url} names no sentinels: use a redis:// or redis+cluster:// URL"
            )
        return StoreUnavailable(
            f"no sentinel of {self._url} answers ({refused}): check that they run, and their ports"
        )

    def _unknown(self) -> ConfigurationError:
        names: set[str] = set()
        for sentinel in self._sentinels:
            try:
                for master in self._ask(sentinel, (b"SENTINEL", b"MASTERS")):
                    names.add(dict(zip(master[::2], master[1::2], strict=True))[b"name"].decode())
            except (RedisError, OSError):
                continue
        known = f"they watch {', '.join(sorted(names))}" if names else "they watch none"
        return ConfigurationError(
            f"the sentinels of {self._url} know no service {self._service!r}: {known}; correct the URL"
        )
