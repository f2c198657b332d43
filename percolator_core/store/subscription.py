"""Receives the messages that wake idle workers when cells become dirty.

The messages of a namespace come over a connection of their own. A message may get lost, which does no harm:
only the dirty index decides which cells are dirty. Under load no worker needs to be woken, so a worker that
receives many messages closes the subscription until it is idle again.
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
    """Listens for wake-up messages on the channels that match a pattern."""

    def __init__(self, client: Callable[[], redis.Redis], pattern: bytes) -> None:
        """Each call of ``client`` makes a client of the server that has the messages at that moment."""
        self._make_client = client
        self._pattern = pattern
        self._pubsub: Any = None

    def listen(self) -> None:
        """Subscribe, unless subscribed. Messages then arrive until the connection is lost."""
        if self._pubsub is not None:
            return
        try:
            pubsub = self._make_client().pubsub(ignore_subscribe_messages=True)
        except ClusterDownError:
            return  # a cluster without a server for the slot: workers scan the index as well
        try:
            pubsub.psubscribe(self._pattern)
            # The confirmation of the subscription.
            pubsub.get_message(timeout=1)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            pubsub.close()
            return
        self._pubsub = pubsub

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait on."""
        # redis-py has no public way to wait on a subscription together with other things.
        connection = self._pubsub.connection if self._pubsub is not None else None
        found = getattr(connection, "_sock", None)
        return [found] if found is not None else []

    def heard(self) -> set[bytes] | None:
        """Return the channels of the messages that have arrived.

        Return None if this call has closed the subscription, because of an error or of too many messages:
        then messages may be lost.
        """
        channels: set[bytes] = set()
        if self._pubsub is None:
            return channels
        try:
            for _ in range(_ENOUGH):
                message = self._pubsub.get_message(timeout=0)
                if message is None:
                    return channels
                channels.add(message["channel"])
        except (RedisConnectionError, RedisTimeoutError, OSError):
            pass
        self.close()
        return None

    def close(self) -> None:
        """Close the subscription."""
        if self._pubsub is not None:
            self._pubsub.close()
            self._pubsub = None
