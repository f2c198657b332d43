"""Parses every form of a store's URL into an `Address`.

::

    embedded:FOLDER[?durability=…]                      a private server kept in the folder
    redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]    rediss:// for TLS
    unix://[USER[:PASSWORD]@]/PATH/TO/SOCKET[?db=N]
    redis+sentinel://H1[:PORT],H2[:PORT]/SERVICE[/DATABASE]
    redis+cluster://H1[:PORT],H2[:PORT]                 rediss+sentinel, rediss+cluster for TLS

A folder is not percent decoded, except that ``%3F`` is a question mark (and ``%253F`` is ``%3F``). ``~`` is
expanded, and a relative folder is resolved against the current directory. In the other forms user, password,
path and options are percent decoded.

`Durability` describes ``?durability=replicas=1,fsync``. ``sentinel_password`` is the password of the
sentinels themselves. ``socket_timeout`` and ``socket_connect_timeout``, in seconds, override the arguments of
`connect`. The options that begin with ``ssl_`` need a scheme with TLS: see docs/how-to/secure.md. Parsing
uses neither network nor disk. No message and no ``repr`` from here contains a password, or a part of the URL
that may belong to a password that was not encoded.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, SupportsIndex
from urllib.parse import SplitResult, quote, unquote, urlsplit

from percolator_core.errors import ConfigurationError
from percolator_core.store.durability import Durability
from percolator_core.store.options import CONTROL, KNOWN, NUMBER, PASSWORDS, READERS, Value, can_be, pairs
from percolator_core.store.redaction import QUERY, SECRET, USER_IN_PATH, redacted

StoreKind = Literal["embedded", "redis", "unix", "sentinel", "cluster"]

_SCHEMES: dict[str, tuple[StoreKind, bool]] = {
    "redis": ("redis", False),
    "rediss": ("redis", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_DEFAULT_PORTS: dict[StoreKind, int] = {"redis": 6379, "sentinel": 26379, "cluster": 6379}
_NOT_IN_HOSTS = re.compile(r"[\x00-$&-,/;-@\[-^`{-\x7f]")
_QUESTION_MARK = re.compile(r"%((?:25)*3F)", re.IGNORECASE)


class Secret(str):
    """Text that is shown as ``***``, also in a traceback with local variables, and cannot be pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a password is not pickled: pass the store's URL on by other means")


def secret_forms(secret: str | None) -> list[str]:
    """Return a secret as it is and in URL-quoted form, to find it in a text."""
    # str() of a `Secret` is "***"; str.__str__ returns its text.
    plain = str.__str__(secret) if secret else ""
    return list(dict.fromkeys(filter(None, (plain, quote(plain, safe=""), quote(plain)))))


class StoreUrl(str):
    """A store's URL, shown without its password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redacted(self))


@dataclass(frozen=True, slots=True)
class Address:
    """The servers of a store, and the login. Parts that a kind does not have are empty.

    ``service`` is the name that sentinels have for the master. ``options`` are names and values in the order
    of the URL: seconds are numbers, ``ssl_check_hostname`` is a bool, all others are text. ``database`` is 0
    or more, and 0 for embedded and cluster.
    """

    kind: StoreKind
    folder: Path | None = None
    socket_path: str | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    service: str | None = None
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    durability: str = ""
    options: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        # The user in redis://WORD@host is most likely a password whose colon was forgotten.
        for name in PASSWORDS if self.password else (*PASSWORDS, "username"):
            secret = getattr(self, name)
            if secret is not None:
                object.__setattr__(self, name, Secret(secret))


def parse(url: str) -> Address:
    """Parse a store's URL. Raise ConfigurationError for an unknown scheme, or a missing or invalid part."""
    url = StoreUrl(url)
    try:
        return _parse(url)
    except ConfigurationError as error:
        problem = str(error)
    # Raised here, because a traceback may show local variables: here they are shown without a password.
    raise ConfigurationError(problem)


def _parse(url: str) -> Address:
    scheme, colon, rest = url.partition(":")
    if scheme == "embedded" and colon:
        return _embedded(url, rest)
    if scheme not in _SCHEMES or not colon:
        raise ConfigurationError(_unknown_scheme(url))
    if " " in url or CONTROL.search(url):
        raise _wrong(url, "holds a space or a control character", "percent-encode it")
    if not rest.startswith("//"):
        raise _wrong(
            url,
            f"lacks the // after {scheme}:",
            "write unix:///PATH" if scheme == "unix" else f"write {scheme}://HOST",
        )
    if scheme == "unix" and USER_IN_PATH.match(rest):
        raise _wrong(
            url, "has a user after unix:///", "write unix://USER:PASSWORD@/PATH, and in a path %40 for @"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong(url, "is not a URL", "write an IPv6 address in [ ]") from None
    if parts.fragment or url.endswith("#"):
        raise _wrong(url, "holds a #", "in a name or password write %23")
    if "@" in parts.query or ("@" in parts.path and scheme != "unix"):
        # Most likely the password contains a slash, and its second half must not be shown.
        raise _wrong(
            url, "has an @ after the host", "in a password write %2F for / and %3F for ?, elsewhere %40 for @"
        )
    return _network_address(url, parts)


def absolute(url: str) -> str:
    """Return the URL with an absolute folder, for a process with another current directory."""
    folder = parse(url).folder
    if folder is None:
        return url
    name = _QUESTION_MARK.sub(r"%25\1", str(folder)).replace("?", "%3F")
    _, mark, query = url.partition("?")
    return f"embedded:{name}{mark}{query}"


def _embedded(url: str, rest: str) -> Address:
    text, mark, query = rest.partition("?")
    options = [(name, value) for _, name, value in pairs(query)]
    durability = options[0][1] if [name for name, _ in options] == ["durability"] else None
    if mark and durability is None:
        raise _wrong(
            url,
            "has something other than ?durability=… after its folder",
            "leave that out, and write %3F for a ? in the folder's name",
        )
    Durability.parse(durability or "")
    return Address("embedded", folder=_folder(text), durability=durability or "")


def _folder(text: str) -> Path:
    # Two slashes in front belong to the URL, not to the folder: in embedded://state it is state, not /state.
    name = _QUESTION_MARK.sub(_without_25, text.removeprefix("//"))
    if not name.strip():
        raise ConfigurationError("the URL embedded: names no folder: write embedded:./state")
    if "\0" in name:
        raise ConfigurationError("the folder of an embedded: URL holds a NUL character: choose another name")
    try:
        return Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 - symlinks stay
    except RuntimeError:
        raise ConfigurationError(
            f"embedded:{name} names the home of a user who is not known here: write the folder in full"
        ) from None


def _without_25(found: re.Match[str]) -> str:
    return "%" + found[1][2:] if len(found[1]) > 2 else "?"


def _unknown_scheme(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    known = ["embedded", *_SCHEMES]
    repeatable = "?" not in url and redacted(url) == url
    if not url.strip():
        return "the store's URL is empty: write embedded:./state or redis://127.0.0.1:6379/0"
    if repeatable and re.fullmatch(r"\d+(/\d+)?", rest):
        hint = f"did you mean redis://{url}?"
    elif repeatable and (not colon or "/" in scheme):
        hint = f"did you mean embedded:{url}?"
    elif close := difflib.get_close_matches(scheme.lower(), known, n=1):
        hint = f"did you mean {close[0]}:?"
    else:
        hint = f"it starts with one of {', '.join(f'{name}:' for name in known)}"
    return f"{redacted(url)!r} is not the URL of a store: {hint}"


def _network_address(url: str, parts: SplitResult) -> Address:
    kind, tls = _SCHEMES[parts.scheme]
    userinfo, _, hosts = parts.netloc.rpartition("@")
    if any(sign.search(hosts + parts.path) for sign in (QUERY, SECRET)):
        raise _wrong(
            url, "has an option in front of its ?", "write ? before the first option, & before the others"
        )
    options = _options(url, parts.query)
    name, _, secret = userinfo.partition(":")
    options.setdefault("username", unquote(name))
    options.setdefault("password", unquote(secret))
    path = unquote(parts.path)
    service, socket_path = None, None
    sentinel_password = options.pop("sentinel_password", None)
    if sentinel_password is not None and kind != "sentinel":
        raise _wrong(url, "has a sentinel_password, and no sentinels", "leave it out")
    durability = options.pop("durability", "")
    login = options.pop("username") or None, options.pop("password") or None
    number = options.pop("db", None)
    typed = _typed(url, options)
    _demand_tls(url, kind, tls=tls, options=options)
    if kind == "unix":
        if hosts or not path.startswith("/") or path.endswith("/") or CONTROL.search(path):
            raise _wrong(url, "names no socket by its full path", "write unix:///run/redis.sock")
        socket_path, path = path, ""
    elif kind == "sentinel":
        service, _, path = path.removeprefix("/").partition("/")
        if not service:
            raise _wrong(url, "names no service", "write redis+sentinel://host1:26379,host2:26379/service/0")
    return Address(
        kind,
        socket_path=socket_path,
        hosts=() if kind == "unix" else _hosts(url, kind, hosts),
        service=service,
        database=_database(url, kind, path.removeprefix("/"), number),
        tls=tls,
        username=login[0],
        password=login[1],
        sentinel_password=sentinel_password,
        durability=durability,
        options=typed,
    )


def _options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for _, name, value in pairs(query):
        if value is None:
            raise _wrong(url, "has an option without =", "write NAME=VALUE, and %26 for an & in a password")
        if not PASSWORDS.isdisjoint(options) and not can_be(name, value):
            raise _wrong(
                url,
                "has an unknown or invalid option after a password",
                "write %26 for an & in the password, or put the option in front of it",
            )
        if name not in KNOWN:
            close = difflib.get_close_matches(name, sorted(KNOWN), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(KNOWN))}"
            raise _wrong(url, "has an option that is not known", hint)
        if name in options:
            raise _wrong(url, f"has the option {name} twice", "leave one out")
        options[name] = value
    Durability.parse(options.get("durability", ""))
    return options


def _typed(url: str, options: dict[str, str]) -> tuple[tuple[str, Value], ...]:
    """Convert the options' texts to their types."""
    found = []
    for name, text in options.items():
        read, form = READERS[name]
        try:
            found.append((name, read(text)))
        except ValueError:
            raise _wrong(url, f"has an invalid value for {name}", f"write {form}") from None
    return tuple(found)


def _demand_tls(url: str, kind: StoreKind, *, tls: bool, options: dict[str, str]) -> None:
    """Raise for an option of TLS without TLS, and for a key without its certificate."""
    wanted = sorted(name for name in options if name.startswith("ssl_"))
    if wanted and not tls:
        with_tls = "rediss" if kind == "unix" else f"redis{urlsplit(url).scheme.replace('redis', 's', 1)}"
        raise _wrong(url, f"has the option {wanted[0]} without TLS", f"write {with_tls}://, or leave it out")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise _wrong(url, "has the option ssl_keyfile alone", "name the certificate with ssl_certfile")


def _hosts(url: str, kind: StoreKind, text: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    if not text and kind == "redis":
        return (("localhost", _DEFAULT_PORTS[kind]),)
    for one in text.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+)(?::(\d{1,5}))?", one)
        port = int(match[2] or _DEFAULT_PORTS[kind]) if match else 0
        if not match or not 0 < port < 65536:
            raise _wrong(url, "has a host that is not HOST[:PORT]", "ports go to 65535, IPv6 needs [ ]")
        hosts.append((_host(url, unquote(match[1]).strip("[]")), port))
    if kind == "redis" and len(hosts) > 1:
        raise _wrong(url, "names more than one host", "for several use redis+sentinel: or redis+cluster:")
    return tuple(hosts)


def _host(url: str, name: str) -> str:
    try:
        name.encode("idna")
        if not _NOT_IN_HOSTS.search(name):
            return name
    except UnicodeError:
        pass
    raise _wrong(url, "has a host that is no valid name", "write 1 to 63 letters or digits between dots")


def _database(url: str, kind: StoreKind, path: str, option: str | None) -> int:
    if path and option is not None and path != option:
        raise _wrong(url, "names two databases", "leave out the path or the option db")
    text = path or option or "0"
    if not NUMBER.fullmatch(text):
        raise _wrong(url, "has a database that is not a number", "write 0, or leave it out")
    if kind == "cluster" and int(text):
        raise _wrong(url, "names a database, but a cluster has only database 0", "leave it out")
    return int(text)


def _wrong(url: str, what: str, mend: str) -> ConfigurationError:
    return ConfigurationError(f"the store's URL {redacted(url)!r} {what}: {mend}")
