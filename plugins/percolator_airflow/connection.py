"""An Airflow connection of the type ``percolator``, read into the arguments of `percolator_core.connect`.

::

    host      the store's URL without secrets, in any form that `connect` takes, or the name of a Redis server
    port      of that server, when the host does not say it
    schema    the number of its database, when the host does not say it
    login     user and password, which are put into the URL
    password
    extra     JSON: namespace, lock_ttl, lock_wait, patience, timeout, tls,
              and the options that a store's URL may have, such as durability

Nothing of Airflow is imported here, so that what reads connections elsewhere, such as the pages of the API
server, may use it too. No message and no ``repr`` made here holds a secret.
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
from percolator_core.store.url import StoreUrl, parse

CONN_TYPE: Final = "percolator"
DEFAULT_CONN_ID: Final = "percolator_default"

_SECONDS: Final = ("lock_ttl", "lock_wait", "patience", "timeout")
_OURS: Final = frozenset({"namespace", "tls", *_SECONDS})
_TRUE: Final = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})
_HAS_SCHEME: Final = re.compile(r"embedded:|[a-z][a-z0-9+]*://", re.IGNORECASE)
_WITH_TLS: Final = re.compile(r"^redis(?=[+:])")


class AirflowConnection(Protocol):
    """What of a connection is read; both of Airflow's classes for them have it."""

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
    """Where a store is, and how to enter it, as a connection says. Shown without its secrets.

    ``namespace`` and ``settings``, which holds the further arguments of `connect`, are what the connection
    gives. ``secrets`` are the texts that nobody may see.
    """

    conn_id: str
    url: StoreUrl
    namespace: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def arguments(self, namespace: str | None = None, default: str = "default") -> dict[str, Any]:
        """The arguments of `connect`.

        Args:
            namespace: counts more than the connection's.
            default: the namespace when neither is given.
        """
        return {"url": self.url, "namespace": namespace or self.namespace or default, **self.settings}


def store_connection(connection: AirflowConnection) -> StoreConnection:
    """Read a connection.

    A relative folder of an embedded store is one of Airflow's home: the parts of Airflow run in different
    current directories.

    Raises:
        ConfigurationError: a field is missing or cannot be; the message names the connection and the field.
    """
    try:
        return _read(connection)
    except ConfigurationError as error:
        problem = f"the connection {connection.conn_id!r}: {error}"
    # Raised here, where no local variable holds a part of the URL: a traceback may show them.
    raise ConfigurationError(problem)


def _read(connection: AirflowConnection) -> StoreConnection:
    if connection.conn_type not in (CONN_TYPE, None, ""):
        raise ConfigurationError(f"its type is {connection.conn_type!r}, not {CONN_TYPE}: mend its type")
    extra = _extra(connection.extra)
    url = _with_login(_located(connection, tls=_truth("tls", extra.get("tls"))), connection)
    url = _with_options(url, {name: str(value) for name, value in extra.items() if name not in _OURS})
    address = parse(url)  # refuses what cannot be, without showing it
    settings: dict[str, Any] = {name: _seconds(name, extra[name]) for name in _SECONDS if name in extra}
    namespace = extra.get("namespace") or None
    # What looks like redis://WORD@host has most likely forgotten the colon in front of a password.
    login = address.username if address.password is None else None
    found = [connection.password, address.password, address.sentinel_password, login]
    return StoreConnection(
        connection.conn_id,
        StoreUrl(url),
        None if namespace is None else str(namespace),
        settings,
        _all_forms(found),
    )


def _all_forms(secrets: list[str | None]) -> tuple[str, ...]:
    """The secrets, plain and as they stand in a URL."""
    # str.__str__ is the text of a `Secret`, whose own str() is "***".
    plain = [str.__str__(secret) for secret in secrets if secret]
    return tuple(dict.fromkeys(form for one in plain for form in (one, quote(one, safe=""), quote(one))))


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
            raise ConfigurationError(f"its extra has a key {name!r} that is not known: {hint}")
    # A form in the browser sends fields that were left empty.
    return {name: value for name, value in extra.items() if value is not None and value != ""}


def _located(connection: AirflowConnection, *, tls: bool) -> str:
    """The URL by host, port and schema."""
    host = (connection.host or "").strip()
    if not host:
        raise ConfigurationError(
            "its host is empty: write the store's URL there, such as redis://127.0.0.1:6379/0 or "
            "embedded:/var/lib/percolator; in a URI its : and / are written %3A and %2F"
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
        return url  # the parser of URLs has a sentence for it
    if not name.startswith("~"):
        name = str(airflow_home() / name)
    return f"embedded:{name}{mark}{query}"


def airflow_home() -> Path:
    """Airflow's home folder: where relative folders of embedded stores are."""
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser().absolute()


def _with_login(url: str, connection: AirflowConnection) -> str:
    if not connection.login and not connection.password:
        return url
    scheme, _, rest = url.partition(":")
    if scheme == "embedded":
        raise ConfigurationError(
            "an embedded store has neither user nor password: leave login and password empty"
        )
    rest = rest.removeprefix("//")
    if "@" in rest:
        raise ConfigurationError("its host names a user, and so do its fields: leave out the host's")
    user = quote(connection.login or "", safe="")
    secret = f":{quote(connection.password, safe='')}" if connection.password else ""
    return f"{scheme}://{user}{secret}@{rest}"


def _with_options(url: str, options: Mapping[str, str]) -> str:
    if not options:
        return url
    # Passwords last: what follows one might be taken for the rest of it, and not be shown.
    ordered = sorted(options.items(), key=lambda option: (option[0] in PASSWORDS, option[0]))
    place, _, query = url.partition("?")
    twice = sorted({name for name, _ in parse_qsl(query)} & options.keys())
    if twice:
        raise ConfigurationError(f"{twice[0]} is given by its host and by its extra: leave one out")
    return f"{place}?{'&'.join(filter(None, [query, urlencode(ordered)]))}"


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= 86_400:
        raise ConfigurationError(f"{name} of its extra is not a number of seconds above 0, at most 86400")
    return number


def _truth(name: str, value: Any) -> bool:
    text = str("" if value is None else value).lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{name} of its extra is neither true nor false")
    return text in _TRUE
