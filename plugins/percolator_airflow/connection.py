"""Turn an Airflow connection of the type ``percolator`` into the arguments of `percolator_core.connect`.

::

    host      the store's URL without secrets, in any form that `connect` takes, or the name of a Redis server
    port      the server's port, if the host has none
    schema    the number of the database, if the host has none
    login     the user, for the URL
    password  the password, for the URL
    extra     JSON: namespace, lock_ttl, lock_wait, patience, timeout, tls,
              and the options of a store's URL, such as durability

This module imports nothing of Airflow. No message and no ``repr`` of this module contains a secret.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode

from percolator_core.errors import ConfigurationError
from percolator_core.store.options import KNOWN, PASSWORDS
from percolator_core.store.url import StoreUrl, parse, secret_forms

CONN_TYPE: Final = "percolator"
DEFAULT_CONN_ID: Final = "percolator_default"

_SECONDS: Final = ("lock_ttl", "lock_wait", "patience", "timeout")
_OURS: Final = frozenset({"namespace", "tls", *_SECONDS})
_TRUE: Final = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})
_HAS_SCHEME: Final = re.compile(r"embedded:|[a-z][a-z0-9+]*://", re.IGNORECASE)
_WITH_TLS: Final = re.compile(r"^redis(?=[+:])")


class AirflowConnection(Protocol):
    """The fields of a connection that are read; Airflow's two connection classes have them."""

    conn_id: str
    conn_type: str | None
    host: str | None
    schema: str | None
    login: str | None
    password: str | None
    port: int | None
    extra: str | None


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """A store's URL and settings from a connection; the ``repr`` has no secrets.

    ``settings`` are further arguments of `connect`; ``secrets`` are the texts that logs must mask.
    """

    conn_id: str
    url: StoreUrl
    namespace: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def arguments(self, namespace: str | None = None, default: str = "default") -> dict[str, Any]:
        """Return the arguments of `connect`.

        Args:
            namespace: overrides the namespace of the connection.
            default: the namespace if neither the argument nor the connection has one.
        """
        return {"url": self.url, "namespace": namespace or self.namespace or default, **self.settings}


def store_connection(connection: AirflowConnection) -> StoreConnection:
    """Read a connection.

    If the folder of an embedded store is a relative path, it is below Airflow's home, because the processes
    of Airflow have different current directories.

    Raises:
        ConfigurationError: a field is missing or invalid; the message names the connection and the field.
    """
    try:
        return _read(connection)
    except ConfigurationError as error:
        problem = f"the connection {connection.conn_id!r}: {error}"
    # Raised here because a traceback may show local variables, and no variable here has a part of the URL.
    raise ConfigurationError(problem)


def _read(connection: AirflowConnection) -> StoreConnection:
    if connection.conn_type not in (CONN_TYPE, None, ""):
        raise ConfigurationError(f"its type is {connection.conn_type!r}, not {CONN_TYPE}: correct its type")
    extra = _extra(connection.extra)
    url = _with_login(_located(connection, tls=_truth("tls", extra.get("tls"))), connection)
    url = _with_options(url, {name: str(value) for name, value in extra.items() if name not in _OURS})
    address = parse(url)  # its errors do not show the URL
    settings: dict[str, Any] = {name: _seconds(name, extra[name]) for name in _SECONDS if name in extra}
    namespace = extra.get("namespace") or None
    # In redis://WORD@host the word is probably a password whose colon was forgotten.
    login = address.username if address.password is None else None
    found = [connection.password, address.password, address.sentinel_password, login]
    return StoreConnection(
        connection.conn_id,
        StoreUrl(url),
        None if namespace is None else str(namespace),
        settings,
        tuple(dict.fromkeys(form for secret in found for form in secret_forms(secret))),
    )


def _extra(text: str | None) -> dict[str, Any]:
    try:
        extra = json.loads(text) if text and text.strip() else {}
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigurationError('its extra is not a JSON object: write {"durability": "fsync"}, or nothing')
    for name in extra:
        if name not in _OURS and name not in KNOWN:
            close = difflib.get_close_matches(name, sorted(_OURS | KNOWN), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(_OURS | KNOWN))}"
            raise ConfigurationError(f"its extra has an unknown key {name!r}: {hint}")
    # A form in the browser also sends empty fields.
    return {name: value for name, value in extra.items() if value is not None and value != ""}


def _located(connection: AirflowConnection, *, tls: bool) -> str:
    """Build the URL from host, port and schema."""
    host = (connection.host or "").strip()
    if not host:
        raise ConfigurationError(
            "its host is empty: write the store's URL there, such as redis://127.0.0.1:6379/0 or "
            "embedded:/var/lib/percolator; in a connection URI write %3A for : and %2F for /"
        )
    if host.lower().startswith("embedded:"):
        return _embedded(host)
    if not _HAS_SCHEME.match(host):
        host = f"redis://{f'[{host}]' if host.count(':') > 1 and not host.startswith('[') else host}"
    if tls:
        host = _WITH_TLS.sub("rediss", host)
    scheme, _, rest = host.partition("://")
    place, mark, query = rest.partition("?")
    user, at, place = place.rpartition("@")
    server, slash, path = place.partition("/")
    if connection.port and not re.search(r":\d+$", server):
        server += f":{connection.port}"
    if connection.schema and not path:
        slash, path = "/", connection.schema.strip("/")
    return f"{scheme}://{user}{at}{server}{slash}{path}{mark}{query}"


def _embedded(url: str) -> str:
    name, mark, query = url.partition(":")[2].removeprefix("//").partition("?")
    if not name.strip():
        return url  # the parser of URLs reports it
    if not name.startswith("~"):
        name = str(airflow_home() / name)
    return f"embedded:{name}{mark}{query}"


def airflow_home() -> Path:
    """Return Airflow's home folder. The relative path of an embedded store begins at this folder."""
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser().absolute()


def _with_login(url: str, connection: AirflowConnection) -> str:
    if not connection.login and not connection.password:
        return url
    scheme, _, rest = url.partition(":")
    if scheme == "embedded":
        raise ConfigurationError(
            "an embedded store has no user and no password: leave login and password empty"
        )
    rest = rest.removeprefix("//")
    if "@" in rest:
        raise ConfigurationError("both its host and its login name a user: remove the user from the host")
    user = quote(connection.login or "", safe="")
    secret = f":{quote(connection.password, safe='')}" if connection.password else ""
    return f"{scheme}://{user}{secret}@{rest}"


def _with_options(url: str, options: Mapping[str, str]) -> str:
    if not options:
        return url
    # Passwords come last: whatever follows a password could be masked as a part of it.
    ordered = sorted(options.items(), key=lambda option: (option[0] in PASSWORDS, option[0]))
    place, _, query = url.partition("?")
    twice = sorted({name for name, _ in parse_qsl(query)} & options.keys())
    if twice:
        raise ConfigurationError(f"both its host and its extra set {twice[0]}: remove one")
    return f"{place}?{'&'.join(filter(None, [query, urlencode(ordered)]))}"


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= 86_400:
        raise ConfigurationError(f"{name} in its extra is not a number of seconds above 0 and up to 86400")
    return number


def _truth(name: str, value: Any) -> bool:
    text = str("" if value is None else value).lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{name} in its extra is neither true nor false")
    return text in _TRUE
