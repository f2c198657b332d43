"""Which namespaces a store holds, told from its keys, before there is a connection to one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import redis

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.keys import Keyspace
from percolator_core.store.embedded import EmbeddedServer
from percolator_core.store.folder import known_socket_path
from percolator_core.store.url import Address, parse, redacted

_FORMAT_KEY: Final = re.compile(rb"\{([^{}:]+)\}format")
_STEP: Final = 10_000
_TIMEOUT: Final = 10.0


@contextmanager
def existing_store(url: str) -> Iterator[Address]:
    """Hold the store open, so that an embedded server is started once for all that follows.

    Raises:
        StoreUnavailable: an embedded store's folder holds none; it is not made just for a look.
    """
    address = parse(url)
    if address.kind != "embedded":
        yield address
        return
    assert address.folder is not None
    if not (address.folder / "redis.mutex").exists():
        raise StoreUnavailable(
            f"there is no store in {address.folder}: "
            "name it with --url or PERCOLATOR_URL, or load something first"
        )
    with EmbeddedServer.join(address.folder):
        yield address


def only_namespace(url: str) -> str:
    """The one namespace of an existing store.

    Raises:
        ConfigurationError: there is none, or a choice.
        StoreUnavailable: the store does not answer.
    """
    found = namespaces(url)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(
            f"{redacted(url)} holds no tables yet: load something, or name another store with --url"
        )
    raise ConfigurationError(
        f"{redacted(url)} holds several namespaces: name one with --namespace: {', '.join(found)}"
    )


def refuse_unknown(url: str, namespace: str) -> None:
    """Refuse a namespace in which no table was ever made: its name is most likely mistyped.

    Raises:
        ConfigurationError: it is not there; the message lists those that are.
    """
    with existing_store(url) as address:
        if address.kind in ("sentinel", "cluster"):
            return  # `connect` says what it thinks of them
        client = _client(url, address)
        try:
            if client.exists(Keyspace(namespace).format):
                return
        except redis.RedisError:
            return  # `connect` waits for a server that still loads its data, and tells what else is wrong
        finally:
            client.close()
        there = ", ".join(namespaces(url))
    raise ConfigurationError(
        f"{redacted(url)} has no namespace {namespace!r}: "
        + (f"there are: {there}" if there else "it holds no tables yet, load something first")
    )


def namespaces(url: str) -> list[str]:
    """The namespaces that have tables, sorted.

    Looks at every key of the store, so it takes time in a big one.
    """
    with existing_store(url) as address:
        client = _client(url, address)
        try:
            found = sorted(
                {unquote(match[1].decode()) for match in map(_FORMAT_KEY.fullmatch, _keys(client)) if match}
            )
            return [name for name in found if client.exists(Keyspace(name).catalog)]
        except redis.RedisError as error:
            raise StoreUnavailable(
                f"{redacted(url)} does not answer ({error}): see whether it runs"
            ) from error
        finally:
            client.close()


def _keys(client: Any) -> Iterator[bytes]:
    yield from client.scan_iter(match="{*}format", count=_STEP, _type="string")


def _client(url: str, address: Address) -> Any:
    limits: dict[str, Any] = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT, "protocol": 2}
    if address.kind == "embedded":
        assert address.folder is not None
        return redis.Redis(unix_socket_path=known_socket_path(address.folder.resolve()), **limits)
    if address.kind in ("sentinel", "cluster"):
        raise ConfigurationError(f"{redacted(url)}: name the namespace with --namespace")
    return redis.Redis.from_url(url, **limits)
