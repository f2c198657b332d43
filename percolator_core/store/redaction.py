"""Redacts the URL of a store for messages. In a malformed URL, more than the password may be redacted."""

from __future__ import annotations

import re
from urllib.parse import unquote

from percolator_core.store.options import KNOWN, OPTIONS, PASSWORDS, can_be, pairs

QUERY = re.compile(r"[?]|&(?=[^&]*=)")
"""The start of the options, even if the question mark was forgotten."""
SECRET = re.compile(r"(pass|secret|token|auth)[^=]*=", re.IGNORECASE)
"""An option whose name suggests a secret, anywhere in the URL."""
USER_IN_PATH = re.compile(r"///[^/:@?]*:.*@/", re.DOTALL)
"""A user after the slashes of ``unix:///``, which has no place for one."""
_PLACE = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(:[0-9]*)?")


def redacted(url: str) -> str:
    """Return the URL with ``***`` in place of the password, and of each part that may contain a secret."""
    scheme, colon, rest = url.partition(":")
    if scheme == "embedded":
        folder, mark, query = rest.partition("?")
        return f"{scheme}:{folder}{mark}{_redacted_options(query)}"
    if "%40" in scheme:
        return "***"
    if "@" in scheme:
        scheme, colon, rest = "", "", url
    slashes = "//" if rest.startswith("//") else ""
    user, body = _redacted_user(scheme, rest)
    found = QUERY.search(body)
    place = body[: found.start()] if found else body
    shown = _redacted_place(place)
    if found and shown == place:
        shown += found[0] + _redacted_options(body[found.end() :])
    return scheme + colon + slashes + user + shown


def _redacted_user(scheme: str, rest: str) -> tuple[str, str]:
    """Return the user and redacted password, with the @, and the text after them."""
    body = rest.removeprefix("//")
    if scheme == "unix" and rest.startswith("///") and not USER_IN_PATH.match(rest):
        return "", body
    # A password that was not encoded may hold / ? # or @: everything before the last @ may belong to it.
    user, at, after = body.rpartition("@")
    if not at:
        return "", body
    found = QUERY.search(user)
    options = pairs(user[found.end() :]) if found else ()
    if SECRET.search(unquote(user)) or any(
        value is not None and name not in OPTIONS for _, name, value in options
    ):
        return "***@***", ""  # the password begins in an option: what follows the @ is its rest
    name, colon, _ = user.partition(":")
    return ("***@" if not colon else f"{name}:***@" if re.fullmatch("[^?&#@]*", name) else "***:***@"), after


def _redacted_place(text: str) -> str:
    """Return hosts and path. Malformed ones are redacted: they may be a password without its @."""
    if SECRET.search(unquote(text)):
        return "***"
    hosts = re.split("[/#]", text, maxsplit=1)[0]
    if "%40" not in hosts and all(_PLACE.fullmatch(one) for one in hosts.split(",")):
        return text
    name, colon, _ = hosts.partition(":")
    return f"{name}:***" if colon and "%40" not in name else "***"


def _redacted_options(query: str) -> str:
    shown = []
    behind = False  # an option was redacted before: this one may be the rest of its value
    for text, name, value in pairs(query):
        if value is None or (behind and not can_be(name, value)):
            shown.append("***")
        elif name not in KNOWN or name in PASSWORDS or SECRET.search(value):
            shown.append(f"{text.partition('=')[0]}=***")
            behind = True
        else:
            shown.append(text)
    return "&".join(shown)
