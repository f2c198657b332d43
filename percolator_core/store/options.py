"""The options after the ``?`` of a store's URL, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote_plus

from percolator_core.errors import ConfigurationError
from percolator_core.store.durability import Durability

Value = str | float | bool

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NUMBER = re.compile(r"[0-9]{1,9}")
_LONGEST: Final = 86_400.0
_YES: Final = frozenset({"1", "T", "TRUE", "Y", "YES"})
_NO: Final = frozenset({"0", "F", "FALSE", "N", "NO"})
"""The words that mean false to redis-py; all others mean true to it."""


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= _LONGEST:
        raise ValueError
    return number


def _truth(text: str) -> bool:
    if text.upper() not in _YES | _NO:
        raise ValueError
    return text.upper() in _YES


def _matching(pattern: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return read


_path = _matching(r"[^\x00-\x1f\x7f]+")

READERS: Final[dict[str, tuple[Callable[[str], Value], str]]] = {
    "client_name": (_matching("[!-~]+"), "plain letters, digits and signs, without a space"),
    "socket_connect_timeout": (_seconds, "a number of seconds, above 0 and at most 86400"),
    "socket_timeout": (_seconds, "a number of seconds, above 0 and at most 86400"),
    "ssl_ca_certs": (_path, "the path of a file"),
    "ssl_ca_path": (_path, "the path of a folder"),
    "ssl_cert_reqs": (_matching("none|optional|required"), "none, optional or required"),
    "ssl_certfile": (_path, "the path of a file"),
    "ssl_check_hostname": (_truth, "true or false"),
    "ssl_keyfile": (_path, "the path of a file"),
}

OPTIONS = frozenset(READERS)
"""Options of redis-py that may follow ``?``; those of `_OF_OURS` may, too."""

PASSWORDS: Final = frozenset({"password", "sentinel_password"})
_OF_OURS: Final = PASSWORDS | {"db", "durability", "username"}
KNOWN: Final = OPTIONS | _OF_OURS


def pairs(query: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield each option as it is written, its name, and its value (None without an equals sign)."""
    for text in filter(None, query.split("&")):
        name, equals, value = text.partition("=")
        yield text, unquote_plus(name), unquote_plus(value) if equals else None


def can_be(name: str, value: str) -> bool:
    """Return True if there is such an option and it may have this value."""
    try:
        if name in READERS:
            READERS[name][0](value)
        elif name == "durability":
            Durability.parse(value)
    except (ValueError, ConfigurationError):
        return False
    return name in KNOWN and (name != "db" or bool(NUMBER.fullmatch(value)))
