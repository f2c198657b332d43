"""Find the namespaces of a store by its keys, before a database is opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import redis

from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_core.store.embedded.folder import known_socket_path
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.redaction import redacted
from percolator_core.store.servers import clients_of
from percolator_core.store.url import Address, parse

_FORMAT_KEY: Final = re.compile(rb"\{([^{}:]+)\}format")
_STEP: Final = 10_000
_TIMEOUT: Final = 10.0
_GLANCE: Final = 2.0
"""Seconds to wait for the first answer. After that, `connect` is called, which waits longer."""


@contextmanager
def existing_store(url: str) -> Iterator[Address]:
    """Keep an embedded server running during the block, so that it is started only once.

    Raises:
        StoreUnavailable: the folder of an embedded store has no store; none is created.
    """
    address = parse(url)
    if address.kind != "embedded":
        yield address
        return
    assert address.folder is not None
    if not (address.folder / "redis.mutex").exists():
        raise StoreUnavailable(
            f"there is no store in {address.folder}: "
            "name one with --url or PERCOLATOR_URL, or load data first"
        )
    with EmbeddedServer.join(address.folder):
        yield address


def only_namespace(url: str) -> str:
    """Return the only namespace of an existing store.

    Raises:
        ConfigurationError: the store has no namespace, or several.
        StoreUnavailable: the store does not answer.
    """
    found = namespaces(url)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(
            f"{redacted(url)} holds no tables yet: load data, or name another store with --url"
        )
    raise ConfigurationError(
        f"{redacted(url)} holds several namespaces: name one with --namespace: {', '.join(found)}"
    )


def refuse_unknown(url: str, namespace: str) -> None:
    """Refuse a namespace in which no table was ever created: its name is probably mistyped.

    Raises:
        ConfigurationError: the namespace does not exist; the message lists the existing ones.
    """
    with existing_store(url) as address:
        try:
            with store_clients(url, address, _GLANCE) as clients:
                if any(_holds(client, Keyspace(namespace).format) for client in clients.values()):
                    return
        except (redis.RedisError, PercolatorError):
            return  # `connect` waits for a server that still loads its data, and reports other errors
        there = namespaces(url)
    if namespace in there:
        return  # a worker has created it since the first check
    raise ConfigurationError(
        f"{redacted(url)} has no namespace {namespace!r}: "
        + (f"it has {', '.join(there)}" if there else "it holds no tables yet, load data first")
    )


def namespaces(url: str) -> list[str]:
    """Return the namespaces that have tables, sorted.

    This function scans every key, which takes time in a large store.
    """
    with existing_store(url) as address, store_clients(url, address, _TIMEOUT) as clients:
        try:
            return sorted({name for client in clients.values() for name in _namespaces_at(client)})
        except redis.RedisError as error:
            raise StoreUnavailable(
                f"{redacted(url)} does not answer ({error}): check whether it runs"
            ) from error


def _namespaces_at(client: Any) -> list[str]:
    keys = client.scan_iter(match="{*}format", count=_STEP, _type="string")
    found = {unquote(match[1].decode()) for match in map(_FORMAT_KEY.fullmatch, keys) if match}
    # The catalog is in the same slot as the format, so it is on this server.
    return [name for name in found if _holds(client, Keyspace(name).catalog)]


def _holds(client: Any, key: bytes) -> bool:
    try:
        return bool(client.exists(key))
    except redis.exceptions.MovedError:
        return False


@contextmanager
def store_clients(url: str, address: Address, timeout: float) -> Iterator[dict[str, redis.Redis]]:
    """Yield a client of each server that has data, by address. A reply may take ``timeout`` seconds."""
    if address.folder is None:
        with clients_of(url, timeout) as clients:
            yield {str(endpoint): client for endpoint, client in clients.items()}
        return
    path = known_socket_path(address.folder.resolve())
    with redis.Redis(
        unix_socket_path=path, socket_timeout=timeout, socket_connect_timeout=timeout, protocol=2
    ) as client:
        yield {path: client}
