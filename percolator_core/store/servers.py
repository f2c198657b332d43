"""Plain clients of the servers behind a URL, for tools that work outside of any namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis

from percolator_core import scripts
from percolator_core.layout.keys import Keyspace
from percolator_core.store.connector import Connector
from percolator_core.store.discovery import discover
from percolator_core.store.redaction import redacted
from percolator_core.store.topology import Endpoint
from percolator_core.store.url import parse


@contextmanager
def clients_of(url: str, timeout: float) -> Iterator[dict[Endpoint, redis.Redis]]:
    """Open a client of redis-py for each server that holds data, for a ``with`` block.

    ``timeout`` is how many seconds one reply may take. The URL must not begin with ``embedded:``.

    Raises:
        ConfigurationError: the URL cannot be used; the message says what to change.
        StoreUnavailable: none of the sentinels, or of the cluster's servers, in the URL answers.
    """
    connector = Connector(parse(url), Keyspace("look"), scripts.load, timeout)
    with ExitStack() as stack:
        endpoints = discover(parse(url), connector.ask, redacted(url)).endpoints()
        yield {endpoint: stack.enter_context(connector.client(endpoint)) for endpoint in endpoints}
