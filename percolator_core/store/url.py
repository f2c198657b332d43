"""Every form of a store's URL, read into an `Address`.

::

    embedded:FOLDER                                     a private server kept in the folder
    redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]    rediss:// for TLS
    unix://[USER[:PASSWORD]@]/PATH/TO/SOCKET[?db=N]
    redis+sentinel://H1[:PORT],H2[:PORT]/SERVICE[/DATABASE]
    redis+cluster://H1[:PORT],H2[:PORT]                 rediss+sentinel, rediss+cluster for TLS

A folder is taken as it stands, without percent decoding; ``~`` is expanded and a relative folder is resolved
against the current directory. In the other forms user, password, path and options are percent decoded.
``?durability=replicas=1,fsync`` asks for what `Durability` describes, and ``sentinel_password`` is the one of
the sentinels themselves. ``socket_timeout`` and ``socket_connect_timeout``, in seconds, count more than what
`connect` is called with. The options in ``ssl_`` need a scheme with TLS: see docs/security.md. Reading a URL
touches neither network nor disk. No message and no ``repr`` made here holds a password.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NoReturn, SupportsIndex
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from percolator_core.errors import ConfigurationError

Kind = Literal["embedded", "redis", "unix", "sentinel", "cluster"]

Value = str | float | bool

_LONGEST: Final = 86_400.0
_YES: Final = frozenset({"1", "T", "TRUE", "Y", "YES"})
_NO: Final = frozenset({"0", "F", "FALSE", "N", "NO"})
"""The words that redis-py takes for false; it takes all others for true."""


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= _LONGEST:
        raise ValueError
    return number


def _truth(text: str) -> bool:
    if text.upper() not in _YES | _NO:
        raise ValueError
    return text.upper() in _YES


def _requirement(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise ValueError
    return text


def _client_name(text: str) -> str:
    if not re.fullmatch("[!-~]+", text):
        raise ValueError
    return text


def _path(text: str) -> str:
    if not text or _CONTROL.search(text):
        raise ValueError
    return text


_READERS: Final[dict[str, tuple[Callable[[str], Value], str]]] = {
    "client_name": (_client_name, "plain letters, digits and signs, without a space"),
    "socket_connect_timeout": (_seconds, "a number of seconds, above 0 and at most 86400"),
    "socket_timeout": (_seconds, "a number of seconds, above 0 and at most 86400"),
    "ssl_ca_certs": (_path, "the path of a file"),
    "ssl_ca_path": (_path, "the path of a folder"),
    "ssl_cert_reqs": (_requirement, "none, optional or required"),
    "ssl_certfile": (_path, "the path of a file"),
    "ssl_check_hostname": (_truth, "true or false"),
    "ssl_keyfile": (_path, "the path of a file"),
}

OPTIONS = frozenset(_READERS)
"""Options that may follow ``?``; they mean what they mean to redis-py. So may those of `_OF_OURS`."""

_OF_OURS = ("db", "durability", "password", "sentinel_password", "username")

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("redis", False),
    "rediss": ("redis", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_DEFAULT_PORTS: dict[Kind, int] = {"redis": 6379, "sentinel": 26379, "cluster": 6379}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OPTION = re.compile(r"([?&][^=&]*=)[^&]*")
_SECRET_WORDS = ("pass", "secret", "token", "auth")


class Secret(str):
    """Text that is shown as ``***``, also by a traceback with local variables, and never pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a password is not pickled: pass the store's URL on by other means")


class StoreUrl(str):
    """A store's URL, shown without its password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redacted(self))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is and how to enter it. Parts that a kind does not have are empty.

    ``service`` is the name of the master that sentinels watch. ``options`` are pairs from `OPTIONS`, in the
    order of the URL: seconds as numbers, ``ssl_check_hostname`` as a bool, all others as text.
    ``database`` is 0 or more, and 0 for embedded and cluster.
    """

    kind: Kind
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
        for name in ("password", "sentinel_password"):
            secret = getattr(self, name)
            if secret is not None:
                object.__setattr__(self, name, Secret(secret))


def parse(url: str) -> Address:
    """Read a store's URL.

    Raises:
        ConfigurationError: the scheme is not one of ours, or a part is missing or cannot be.
    """
    url = StoreUrl(url)
    try:
        return _parse(url)
    except ConfigurationError as error:
        problem = str(error)
    # Raised here, where no local variable holds a part of the URL: a traceback may show them.
    raise ConfigurationError(problem)


def _parse(url: str) -> Address:
    scheme, colon, rest = url.partition(":")
    if scheme == "embedded" and colon:
        return Address("embedded", folder=_folder(rest))
    if scheme not in _SCHEMES or not colon:
        raise ConfigurationError(_unknown_scheme(url))
    if " " in url or _CONTROL.search(url):
        raise _wrong(url, "holds a space or a control character", "percent-encode it")
    if not rest.startswith("//"):
        raise _wrong(
            url,
            f"lacks the // after {scheme}:",
            "write unix:///PATH" if scheme == "unix" else f"write {scheme}://HOST",
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong(url, "is not a URL", "an IPv6 address stands in [ ]") from None
    if parts.fragment or url.endswith("#"):
        raise _wrong(url, "holds a #", "in a name or password write %23")
    if "@" in parts.query or ("@" in parts.path and scheme != "unix"):
        # Most likely a password with a slash in it, the rest of which must not be shown as a name.
        raise _wrong(
            url, "holds an @ behind the host", "in a password write %2F for / and %3F for ?, else %40 for @"
        )
    return _network_address(url, parts)


def redacted(url: str) -> str:
    """The URL with its password, and each option that looks like a secret, replaced by ``***``.

    It works on broken URLs too, and then hides too much rather than too little.
    """
    scheme, colon, rest = url.partition(":")
    if scheme == "embedded":
        return url
    if "@" in scheme:
        scheme, colon, rest = "", "", url
    slashes = "//" if rest.startswith("//") else ""
    body = rest.removeprefix("//")
    # A password that was not encoded may hold / ? # or @: everything before the last @ may belong to it.
    user, at, after = body.rpartition("@")
    if at and not (scheme == "unix" and slashes and body.startswith("/")):
        if any(_is_secret(option) for option in _OPTION.finditer(user)):
            after = "***"  # the password stands in an option, and this is the rest of it
        name, between, _ = user.partition(":")
        body = (f"{name}:***@" if between else "***@") + after
    return _OPTION.sub(_without_secret, scheme + colon + slashes + body)


def _without_secret(option: re.Match[str]) -> str:
    return f"{option[1]}***" if _is_secret(option) else option[0]


def _is_secret(option: re.Match[str]) -> bool:
    name = unquote(option[1]).lower()
    return any(word in name for word in _SECRET_WORDS)


def _folder(text: str) -> Path:
    # Two slashes are how a URL starts, not part of the folder: embedded://state would else be /state.
    name = text.removeprefix("//")
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


def _unknown_scheme(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    known = ["embedded", *_SCHEMES]
    # With an @ no part of the URL is sure not to be a password, so then none is repeated.
    repeatable = "@" not in url and "?" not in url
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
    options = _options(url, parts.query)
    userinfo, _, hosts = parts.netloc.rpartition("@")
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
        if hosts or not path.startswith("/") or path.endswith("/") or _CONTROL.search(path):
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
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS and name not in _OF_OURS:
            known = sorted([*OPTIONS, *_OF_OURS])
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise _wrong(url, "has an option that is not known", hint)
        if name in options:
            raise _wrong(url, f"has the option {name} twice", "leave one out")
        options[name] = value
    return options


def _typed(url: str, options: dict[str, str]) -> tuple[tuple[str, Value], ...]:
    """What options mean that are no more than text in the URL."""
    found = []
    for name, text in options.items():
        read, form = _READERS[name]
        try:
            found.append((name, read(text)))
        except ValueError:
            raise _wrong(url, f"has an option {name} that cannot be", f"write {form}") from None
    return tuple(found)


def _demand_tls(url: str, kind: Kind, *, tls: bool, options: dict[str, str]) -> None:
    """Refuse options about TLS where none is spoken, and half a pair of them."""
    wanted = sorted(name for name in options if name.startswith("ssl_"))
    if wanted and not tls:
        with_tls = "rediss" if kind == "unix" else f"redis{urlsplit(url).scheme.replace('redis', 's', 1)}"
        raise _wrong(url, f"has the option {wanted[0]} without TLS", f"write {with_tls}://, or leave it out")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise _wrong(url, "has the option ssl_keyfile alone", "name the certificate with ssl_certfile")


def _hosts(url: str, kind: Kind, text: str) -> tuple[tuple[str, int], ...]:
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
        raise _wrong(url, "names more than one host", "for several take redis+sentinel: or redis+cluster:")
    return tuple(hosts)


def _host(url: str, name: str) -> str:
    try:
        name.encode("idna")
        if " " not in name and not _CONTROL.search(name):
            return name
    except UnicodeError:
        pass
    raise _wrong(url, "has a host that cannot be a name", "between dots stand 1 to 63 letters or digits")


def _database(url: str, kind: Kind, path: str, option: str | None) -> int:
    if path and option is not None and path != option:
        raise _wrong(url, "names two databases", "leave out the path or the option db")
    text = path or option or "0"
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _wrong(url, "has a database that is not a number", "write 0, or leave it out")
    if kind == "cluster" and int(text):
        raise _wrong(url, "names a database, of which a cluster has only 0", "leave it out")
    return int(text)


def _wrong(url: str, what: str, mend: str) -> ConfigurationError:
    return ConfigurationError(f"the store's URL {redacted(url)!r} {what}: {mend}")
