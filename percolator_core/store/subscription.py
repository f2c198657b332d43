"""Hearing that cells became dirty.

The wake-up calls of a namespace come over a connection of their own. They are a push to idle workers and
may get lost; the dirty index is what counts. Under load nobody needs to be woken, so a worker that hears
too much hangs up until it is idle again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import redis
from redis.exceptions import ClusterDownError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

_ENOUGH: Final = 64


class Subscription:
    """Listens for wake-up calls that match a pattern of channels."""

    def __init__(self, client: Callable[[], redis.Redis], pattern: bytes) -> None:
        """``client`` makes a client of the server to listen to, whichever that is by then."""
        self._make_client = client
        self._pattern = pattern
        self._pubsub: Any = None

    def listen(self) -> None:
        """Subscribe, if not yet. What becomes dirty afterwards is heard, unless the connection breaks."""
        if self._pubsub is not None:
            return
        try:
            pubsub = self._make_client().pubsub(ignore_subscribe_messages=True)
        except ClusterDownError:
            return  # a cluster without a server for the slot: the scan of the index makes up for it
        try:
            pubsub.psubscribe(self._pattern)
            # The confirmation: from now on we are subscribed.
            pubsub.get_message(timeout=1)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            pubsub.close()
            return
        self._pubsub = pubsub

    def sockets(self) -> list[socket.socket]:
        """What to wait on."""
        # redis-py has no public way to wait on a subscription together with other things.
        connection = self._pubsub.connection if self._pubsub is not None else None
        found = getattr(connection, "_sock", None)
        return [found] if found is not None else []

    def heard(self) -> bool:
        """Take in what was said meanwhile; whether it was anything."""
        if self._pubsub is None:
            return False
        try:
            for count in range(_ENOUGH):
                if self._pubsub.get_message(timeout=0) is None:
                    return count > 0
        except (RedisConnectionError, RedisTimeoutError, OSError):
            pass
        self.close()
        return True

    def close(self) -> None:
        """Hang up."""
        if self._pubsub is not None:
            self._pubsub.close()
            self._pubsub = None
