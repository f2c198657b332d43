"""Throw-away certificates, and a server that speaks TLS only."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.servers.plain import Server

_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
subjectAltName = {hosts}
"""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority of our own, in a folder.

    Skips the test where there is no openssl to make it with.
    """

    def __init__(self, folder: Path, name: str = "an authority for tests") -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("NOT TESTED: no openssl on this machine to make certificates with")
        self._openssl = openssl
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        key, request = self._request("ca", name, "DNS:nowhere.invalid")
        self.root = Certificate(folder / "ca.crt", key)
        self._sign(request, "ca", "-signkey", str(key), "-days", "1", "-out", str(self.root.certificate))

    def issue(self, name: str, hosts: str = "IP:127.0.0.1,DNS:localhost", days: int = 1) -> Certificate:
        """A certificate for servers and clients; with ``days`` below zero one that has expired."""
        key, request = self._request(name, name, hosts)
        found = Certificate(self._folder / f"{name}.crt", key)
        signer = ("-CA", str(self.root.certificate), "-CAkey", str(self.root.key), "-CAcreateserial")
        self._sign(request, "leaf", *signer, "-days", str(days), "-out", str(found.certificate))
        return found

    def _request(self, file: str, name: str, hosts: str) -> tuple[Path, Path]:
        key, request = self._folder / f"{file}.key", self._folder / f"{file}.csr"
        request.with_suffix(".cnf").write_text(_CONFIG.format(name=name, hosts=hosts))
        self._run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
        self._run(
            "req", "-new", "-key", str(key), "-config", str(request.with_suffix(".cnf")), "-out", str(request)
        )
        return key, request

    def _sign(self, request: Path, extensions: str, *how: str) -> None:
        config = str(request.with_suffix(".cnf"))
        self._run(
            "x509",
            "-req",
            "-sha256",
            "-in",
            str(request),
            "-extfile",
            config,
            "-extensions",
            extensions,
            *how,
        )

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([self._openssl, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def speaks_tls(binary: str) -> bool:
    """Whether this redis-server was built with TLS: one that was not refuses the setting."""
    done = subprocess.run(
        [binary, "--port", "0", "--tls-port", "1"], capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode != 0  # without a certificate none starts
    return "Bad directive" not in done.stdout + done.stderr


@dataclass(frozen=True)
class Papers:
    """Everything that openssl has to make, once."""

    authority: Authority
    stranger: Authority
    server: Certificate
    elsewhere: Certificate
    expired: Certificate
    client: Certificate
    foreign: Certificate

    @classmethod
    def issue(cls, folder: Path) -> Papers:
        """Two authorities, and certificates that are right, and wrong in each way."""
        authority, stranger = Authority(folder / "ours"), Authority(folder / "theirs", "a stranger")
        return cls(
            authority,
            stranger,
            server=authority.issue("server"),
            elsewhere=authority.issue("elsewhere", "DNS:elsewhere.invalid"),
            expired=authority.issue("expired", days=-1),
            client=authority.issue("client"),
            foreign=stranger.issue("foreign"),
        )

    def options(self, client: Certificate | None, **others: object) -> str:
        """The options of a URL that trusts the authority and shows a certificate, or none."""
        found: dict[str, object] = {"ssl_ca_certs": self.authority.root.certificate}
        if client is not None:
            found |= {"ssl_certfile": client.certificate, "ssl_keyfile": client.key}
        return "?" + "&".join(f"{name}={value}" for name, value in {**found, **others}.items())


class TlsServer(Server):
    """A server whose TCP port speaks TLS only; tests look inside over its Unix socket.

    ``clients`` is what it thinks of client certificates: "yes" (needed), "optional" or "no". Skips the test
    where the binary was built without TLS.
    """

    def __init__(
        self,
        binary: str,
        authority: Authority,
        certificate: Certificate,
        clients: str = "yes",
        password: str | None = None,
    ) -> None:
        if not speaks_tls(binary):
            pytest.skip(f"NOT TESTED: {Path(binary).name} of this kind was built without TLS")
        self.password = password
        self._tls = (
            "--tls-cert-file", str(certificate.certificate),
            "--tls-key-file", str(certificate.key),
            "--tls-ca-cert-file", str(authority.root.certificate),
            "--tls-auth-clients", clients,
        )  # fmt: skip
        secret = ("--requirepass", password) if password else ()
        super().__init__(binary, *self._tls, *secret)

    def start(self) -> None:
        # The last --port counts, and the first one came with the base class.
        self.settings = (*self.settings, "--port", "0", "--tls-port", str(self.port))
        super().start()

    @property
    def tls(self) -> str:
        """Its URL, with the password and without any option."""
        user = f":{self.password}@" if self.password else ""
        return f"rediss://{user}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), password=self.password)
