"""Connections that speak TLS: what they need, and what it means when one breaks.

Whether our certificate will do is for the server to say, in an alert. With TLS 1.3 it comes when our side of
the handshake is over, and when the server hangs up behind it, whoever writes then finds the connection reset
and never sees why. So a connection counts as open when the server has answered something.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from redis.connection import Connection
from redis.exceptions import InvalidResponse

from percolator_core.errors import ConfigurationError

_ALERT: Final = re.compile(
    r"ALERT_(\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR|HANDSHAKE_FAILURE)"
)
"""What a server says of a certificate that it does not want, or misses: with TLS 1.2 the last."""

_REQUIREMENTS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """What a handshake needs, with the ``ssl_`` options of a URL; reads the files that they name.

    The authorities that are named are trusted instead of the system's, not beside them.

    Raises:
        ConfigurationError: a file cannot be read or is not what it should be.
    """
    authorities, folder = options.get("ssl_ca_certs"), options.get("ssl_ca_path")
    if authorities is not None:
        _readable("ssl_ca_certs", authorities)
    if folder is not None and not Path(folder).is_dir():
        raise ConfigurationError(f"ssl_ca_path: there is no folder {folder!r}: mend the path")
    try:
        found = ssl.create_default_context(cafile=authorities, capath=folder)
    except ssl.SSLError:
        raise ConfigurationError(
            f"ssl_ca_certs: the file {authorities!r} holds no certificates: name one with authorities in PEM"
        ) from None
    found.check_hostname = False  # else no other mode can be set
    found.verify_mode = _REQUIREMENTS[options.get("ssl_cert_reqs", "required")]
    found.check_hostname = found.verify_mode != ssl.CERT_NONE and options.get("ssl_check_hostname", True)
    if options.get("ssl_certfile") is not None:
        _load_our_own(found, options["ssl_certfile"], options.get("ssl_keyfile"))
    return found


def _load_our_own(found: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _readable("ssl_certfile", certificate)
    option, holder = "ssl_certfile", certificate
    if key is not None:
        option, holder = "ssl_keyfile", key
        _readable(option, holder)

    def no_passphrase() -> str:
        # Without this the terminal would be asked.
        raise ConfigurationError(
            f"{option}: the key in {holder!r} needs a passphrase: name a file with a key that needs none"
        )

    try:
        found.load_cert_chain(certificate, key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"{option}: the key in {holder!r} does not belong to the certificate in {certificate!r}: "
                "name a pair"
            ) from None
        if not _holds_a_certificate(certificate):
            raise ConfigurationError(
                f"ssl_certfile: the file {certificate!r} holds no certificate: name one in PEM"
            ) from None
        raise ConfigurationError(
            f"{option}: the file {holder!r} holds no key: name one in PEM with ssl_keyfile"
        ) from None


def _holds_a_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def _readable(option: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{option}: the file {path!r} cannot be read ({error.strerror}): mend the path or its rights"
        ) from None


class TlsConnection(Connection):
    """A connection whose server has accepted our certificate, or our having none, by the time it is open.

    The files are read again for each, so that certificates can be renewed while we run.
    """

    def __init__(self, *, tls_options: Mapping[str, Any], **settings: Any) -> None:
        """``tls_options`` are those of `context`."""
        self._tls_options = tls_options
        super().__init__(**settings)  # type: ignore[no-untyped-call]

    def _connect(self) -> ssl.SSLSocket:
        try:
            prepared = context(self._tls_options)
        except ConfigurationError as error:
            # The files were in order once, and may be about to be replaced: another attempt is in place.
            raise OSError(str(error)) from error
        plain = super()._connect()  # type: ignore[no-untyped-call]
        try:
            # To be reached by means the handshake too: a port that does not speak TLS says nothing to it.
            plain.settimeout(self.socket_connect_timeout)
            secured = prepared.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        try:
            secured.settimeout(self.socket_timeout)
            _await_the_verdict(secured)
        except BaseException:
            secured.close()
            raise
        return secured


def _await_the_verdict(secured: ssl.SSLSocket) -> None:
    """Have the server answer anything; raises the alert if it sends one instead."""
    try:
        secured.sendall(b"PING\r\n")
    except TimeoutError:
        raise
    except OSError:
        secured.recv(1)  # raises the alert, if one came before the connection was reset
        raise
    reply = b""
    while not reply.endswith(b"\r\n"):  # be it a PONG or the demand for a password
        received = secured.recv(4096)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        reply += received


def refusal(lost: BaseException) -> ConfigurationError | None:
    """What to tell when one side does not trust the other's certificate; None when it is not that.

    Anything else that breaks a connection, or a handshake, may pass: the server may be about to start again.
    """
    for link in _chain(lost):
        if isinstance(link, ssl.SSLCertVerificationError):
            return ConfigurationError(
                f"the store's certificate is not trusted ({link.verify_message.rstrip('.')}): "
                "name its authority with ?ssl_ca_certs=FILE, and connect by the host name it was made for"
            )
        if isinstance(link, ssl.SSLError) and (alert := _ALERT.search(link.reason or "")):
            return ConfigurationError(
                f"the store refuses our certificate ({alert[1].lower().replace('_', ' ')}): "
                "name one it trusts with ?ssl_certfile=FILE&ssl_keyfile=FILE"
            )
    return None


def handshake_is_silent(lost: BaseException) -> bool:
    """Whether the server said nothing to our handshake in time."""
    return any(isinstance(link, socket.timeout) and "handshake" in str(link) for link in _chain(lost))


def is_broken_off(lost: BaseException) -> bool:
    """Whether somebody was there, and hung up or spoke another language."""
    return any(
        isinstance(link, ssl.SSLError | ConnectionResetError | BrokenPipeError | InvalidResponse)
        or "closed by server" in str(link)
        for link in _chain(lost)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
