"""Connections with TLS: their settings, and the reason if such a connection fails.

A server that refuses our certificate sends an alert. With TLS 1.3 the alert comes after our side of the
handshake, and the server may then close the connection. A client that writes in that moment gets a reset
instead of the alert. So a connection counts as open only after the server has replied to a first command.
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
"""Alerts of a server that refuses our certificate, or requires one (HANDSHAKE_FAILURE with TLS 1.2)."""

_REQUIREMENTS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Make the settings of a handshake from the ``ssl_`` options of a URL, and read the files that they name.

    If ``ssl_ca_certs`` or ``ssl_ca_path`` is given, its authorities replace those of the system.

    Raises:
        ConfigurationError: a file cannot be read or has the wrong content.
    """
    authorities, folder = options.get("ssl_ca_certs"), options.get("ssl_ca_path")
    if authorities is not None:
        _readable("ssl_ca_certs", authorities)
    if folder is not None and not Path(folder).is_dir():
        raise ConfigurationError(f"ssl_ca_path: there is no folder {folder!r}: correct the path")
    try:
        found = ssl.create_default_context(cafile=authorities, capath=folder)
    except ssl.SSLError:
        raise ConfigurationError(
            f"ssl_ca_certs: the file {authorities!r} holds no certificates: name a PEM file with authorities"
        ) from None
    found.check_hostname = False  # the next line would fail otherwise
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
        # Without this function OpenSSL would ask at the terminal.
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
                f"ssl_certfile: the file {certificate!r} holds no certificate: name a PEM file"
            ) from None
        raise ConfigurationError(
            f"{option}: the file {holder!r} holds no key: name a PEM file as ssl_keyfile"
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
            f"{option}: the file {path!r} cannot be read ({error.strerror}): correct its path or mode"
        ) from None


class TlsConnection(Connection):
    """A connection that is open only after the server has accepted our certificate, or the lack of one.

    Each connection reads the files again, so that certificates can be renewed while the process runs.
    """

    def __init__(self, *, tls_options: Mapping[str, Any], **settings: Any) -> None:
        """``tls_options`` are the options of `context`."""
        self._tls_options = tls_options
        super().__init__(**settings)  # type: ignore[no-untyped-call]

    def _connect(self) -> ssl.SSLSocket:
        try:
            prepared = context(self._tls_options)
        except ConfigurationError as error:
            # The files were valid once and may be about to be replaced: an OSError lets the caller try again.
            raise OSError(str(error)) from error
        plain = super()._connect()  # type: ignore[no-untyped-call]
        try:
            # The connect timeout also limits the handshake, which a port without TLS does not answer.
            plain.settimeout(self.socket_connect_timeout)
            secured = prepared.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        try:
            secured.settimeout(self.socket_timeout)
            _await_acceptance(secured)
        except BaseException:
            secured.close()
            raise
        return secured


def _await_acceptance(secured: ssl.SSLSocket) -> None:
    """Wait for a reply of the server; raise its alert if it sends one instead."""
    try:
        secured.sendall(b"PING\r\n")
    except TimeoutError:
        raise
    except OSError:
        secured.recv(1)  # raises the alert if one came before the connection was reset
        raise
    reply = b""
    while not reply.endswith(b"\r\n"):  # a PONG, or an error because the login comes later
        received = secured.recv(4096)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        reply += received


def refusal(lost: BaseException) -> ConfigurationError | None:
    """Return the error to raise if one side does not trust the other's certificate, or None.

    None means that another attempt may succeed: the server may be about to start again.
    """
    for link in _chain(lost):
        if isinstance(link, ssl.SSLCertVerificationError):
            return ConfigurationError(
                f"the store's certificate is not trusted ({link.verify_message.rstrip('.')}): "
                "name its authority with ?ssl_ca_certs=FILE, and connect by the host name in the certificate"
            )
        if isinstance(link, ssl.SSLError) and (alert := _ALERT.search(link.reason or "")):
            return ConfigurationError(
                f"the store refuses our certificate ({alert[1].lower().replace('_', ' ')}): "
                "name one it trusts with ?ssl_certfile=FILE&ssl_keyfile=FILE"
            )
    return None


def handshake_is_silent(lost: BaseException) -> bool:
    """Return True if the server did not answer the handshake in time."""
    return any(isinstance(link, socket.timeout) and "handshake" in str(link) for link in _chain(lost))


def is_broken_off(lost: BaseException) -> bool:
    """Return True if a server answered, but then closed the connection or used another protocol."""
    return any(
        isinstance(link, ssl.SSLError | ConnectionResetError | BrokenPipeError | InvalidResponse)
        or "closed by server" in str(link)
        for link in _chain(lost)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
