"""Connecting over TLS: what is refused for good and at once, and what is only a connection lost."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import ConfigurationError, StoreUnavailable, scripts
from percolator_core.layout.keys import Keyspace
from percolator_core.store import tls
from percolator_core.store.connector import CONNECT_PATIENCE, Connector
from percolator_core.store.pipeline import Stream
from percolator_core.store.refusals import LOST
from percolator_core.store.topology import Endpoint
from percolator_core.store.url import parse
from tests.servers.plain import Server, binaries, free_port, hang_up, open_pipelines, some_namespace
from tests.servers.tls import Certificate, Papers, TlsServer

PASSWORD = "canary-1d07"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers.issue(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def own(papers: Papers, tmp_path: Path) -> Papers:
    """The same in copies, to be spoiled."""

    def copy(one: Certificate) -> Certificate:
        return Certificate(
            *(Path(shutil.copy(file, tmp_path / file.name)) for file in (one.certificate, one.key))
        )

    return replace(papers, server=copy(papers.server), client=copy(papers.client))


def binary() -> str:
    if "system" not in binaries():
        pytest.skip("NOT TESTED: no redis-server on PATH")
    return binaries()["system"]


@pytest.fixture(scope="module")
def server(papers: Papers) -> Iterator[TlsServer]:
    """It wants a certificate and a password."""
    found = TlsServer(binary(), papers.authority, papers.server, password=PASSWORD)
    yield found
    found.close()


@pytest.fixture
def spoilable(own: Papers) -> Iterator[TlsServer]:
    """It wants a certificate, and its own is a copy."""
    found = TlsServer(binary(), own.authority, own.server)
    yield found
    found.close()


class OldServer(TlsServer):
    """It speaks TLS 1.2, where certificates are judged within the handshake."""

    def start(self) -> None:
        self.settings = (*self.settings, "--tls-protocols", "TLSv1.2")
        super().start()


def options(papers: Papers, client: Certificate | None, **others: object) -> str:
    found: dict[str, object] = {"ssl_ca_certs": papers.authority.root.certificate}
    if client is not None:
        found |= {"ssl_certfile": client.certificate, "ssl_keyfile": client.key}
    return "?" + "&".join(f"{name}={value}" for name, value in (found | others).items() if value is not None)


def dialer(url: str) -> Callable[[], Stream]:
    address = parse(url)
    found = Connector(address, Keyspace("tls"), scripts.load, 10.0)
    return lambda: found.connect(Endpoint(*address.hosts[0]))


def refusal(url: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        percolator.connect(url, "tls")
    words = str(refused.value)
    assert "\n" not in words
    assert ": " in words, "there is no mend"
    assert PASSWORD not in words
    return words


def use(db: percolator.Database) -> None:
    with db.transaction() as t:
        t.set("t", "row", "c", b"value")
    assert db.snapshot().get("t", "row", "c") == b"value"


# Certificates.


@pytest.mark.parametrize("which", ["none", "expired", "foreign"])
def test_each_single_attempt_sees_why_we_are_refused(server: TlsServer, papers: Papers, which: str) -> None:
    """The alert is read although the server has reset the connection by the time that we write."""
    ours = {"none": None, "expired": papers.expired, "foreign": papers.foreign}[which]
    dial = dialer(server.tls + options(papers, ours))
    for _ in range(25):
        with pytest.raises(ConfigurationError, match="refuses our certificate") as refused:
            dial()
        assert "?ssl_certfile=FILE&ssl_keyfile=FILE" in str(refused.value)


@pytest.mark.parametrize("which", ["none", "expired", "foreign", "right"])
def test_tls_1_2(papers: Papers, which: str) -> None:
    ours = {"none": None, "expired": papers.expired, "foreign": papers.foreign, "right": papers.client}[which]
    old = OldServer(binary(), papers.authority, papers.server)
    try:
        url = old.tls + options(papers, ours)
        if which == "right":
            percolator.connect(url, some_namespace()).close()
        else:
            assert "refuses our certificate" in refusal(url)
    finally:
        old.close()


def test_another_certificate_at_a_server_that_was_trusted(spoilable: TlsServer, own: Papers) -> None:
    url = spoilable.tls + options(own, own.client)
    with percolator.connect(url, some_namespace(), patience=600) as db:
        db.create_table("t")
        shutil.copy(own.foreign.certificate, own.server.certificate)
        shutil.copy(own.foreign.key, own.server.key)
        spoilable.kill()
        spoilable.start()
        with pytest.raises(ConfigurationError, match="certificate is not trusted"):
            db.timestamp()


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_nobody_to_ask_is_trusted(server: TlsServer, papers: Papers, kind: str) -> None:
    path = "/master" if kind == "sentinel" else ""
    url = server.tls.replace("rediss:", f"rediss+{kind}:").removesuffix("/0") + path
    with pytest.raises((ConfigurationError, StoreUnavailable), match="certificate is not trusted") as refused:
        percolator.connect(url + options(papers, papers.client, ssl_ca_certs=papers.foreign.certificate), "n")
    assert "ssl_ca_certs=FILE" in str(refused.value)


def test_named_authorities_are_trusted_alone(papers: Papers) -> None:
    found = tls.context({"ssl_ca_certs": str(papers.authority.root.certificate)})
    assert len(found.get_ca_certs()) == 1


def test_no_check(server: TlsServer, papers: Papers) -> None:
    url = server.tls + options(papers, papers.client, ssl_ca_certs=None, ssl_cert_reqs="none")
    percolator.connect(url, some_namespace()).close()


# Files.


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize("content", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n", None])
def test_a_file_with_nothing_of_use(
    server: TlsServer, papers: Papers, tmp_path: Path, option: str, content: str | None
) -> None:
    path = tmp_path / "a file"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    words = refusal(server.tls + options(papers, papers.client, **{option: str(path).replace(" ", "%20")}))
    assert words.startswith(f"{option}: ")
    assert str(path) in words


def test_the_wrong_file(server: TlsServer, papers: Papers) -> None:
    swapped = Certificate(papers.client.key, papers.client.certificate)
    assert "client.key' holds no certificate" in refusal(server.tls + options(papers, swapped))
    words = refusal(server.tls + options(papers, papers.client, ssl_keyfile=papers.client.certificate))
    assert "client.crt' holds no key" in words
    assert "name a PEM file as ssl_keyfile" in refusal(
        server.tls + options(papers, papers.client, ssl_keyfile=None)
    )


def test_certificate_and_key_in_one_file(server: TlsServer, papers: Papers, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(papers.client.certificate.read_bytes() + papers.client.key.read_bytes())
    url = server.tls + options(papers, Certificate(both, both), ssl_keyfile=None)
    percolator.connect(url, some_namespace()).close()


def test_a_key_of_another_certificate(server: TlsServer, papers: Papers) -> None:
    words = refusal(server.tls + options(papers, papers.client, ssl_keyfile=papers.expired.key))
    assert "does not belong to the certificate" in words


def test_a_key_with_a_passphrase_is_not_asked_for_at_the_terminal(
    server: TlsServer, papers: Papers, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", papers.client.key, "-aes128", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
    )
    words = refusal(server.tls + options(papers, papers.client, ssl_keyfile=locked))
    assert "needs a passphrase" in words


def test_a_file_that_may_not_be_read(server: TlsServer, own: Papers) -> None:
    if os.geteuid() == 0:
        pytest.skip("NOT TESTED: root may read every file")
    own.client.key.chmod(0)
    assert "Permission denied" in refusal(server.tls + options(own, own.client))


def test_a_folder_of_authorities(server: TlsServer, papers: Papers, tmp_path: Path) -> None:
    url = server.tls + options(papers, papers.client, ssl_ca_certs=None, ssl_ca_path=tmp_path)
    assert "certificate is not trusted" in refusal(url)
    shutil.copy(papers.authority.root.certificate, tmp_path / "ca.pem")
    subprocess.run(["openssl", "rehash", tmp_path], check=True, capture_output=True)
    percolator.connect(url, some_namespace()).close()
    assert "there is no folder" in refusal(url + "/absent")


def test_files_are_looked_at_before_anybody_is_asked(papers: Papers) -> None:
    for scheme, rest in (("rediss+cluster", ""), ("rediss+sentinel", "/master"), ("rediss", "")):
        url = f"{scheme}://:{PASSWORD}@127.0.0.1:1{rest}"
        assert "/no/file" in refusal(url + options(papers, None, ssl_ca_certs="/no/file"))


def test_a_renewed_certificate_is_taken_and_a_broken_file_meanwhile_is_a_hiccup(
    server: TlsServer, own: Papers
) -> None:
    with percolator.connect(server.tls + options(own, own.client), some_namespace(), patience=0.3) as db:
        db.create_table("t")
        own.client.certificate.write_text("half a certificate")
        hang_up(db)
        with pytest.raises(StoreUnavailable, match="holds no certificate"):
            use(db)
        renewed = own.authority.issue("renewed")
        shutil.copy(renewed.certificate, own.client.certificate)
        shutil.copy(renewed.key, own.client.key)
        use(db)


# Hiccups.


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Failing:
    """A port whose server dies at some point of each connection, one after another."""

    def __init__(self, port: int, papers: Papers) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(60)
        self.port: int = self._listener.getsockname()[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(papers.server.certificate, papers.server.key)

    def fail(self, how: str) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(30)
        when, _, end = how.partition(", ")
        if when == "hello":
            connection.recv(1)
        elif when == "handshake":
            # The client goes on writing, and may have got the tickets or not.
            connection = self._context.wrap_socket(connection, server_side=True)
        if end == "reset":
            reset(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._listener.close()


HICCUPS = [f"{when}, {end}" for when in ("at once", "hello", "handshake") for end in ("close", "reset")]


@pytest.mark.parametrize("how", HICCUPS)
def test_a_connection_that_breaks_is_no_configuration_error(papers: Papers, how: str) -> None:
    port = Failing(0, papers)
    dial = dialer(f"rediss://127.0.0.1:{port.port}" + options(papers, papers.client))
    thread = threading.Thread(target=port.fail, args=(how,))
    thread.start()
    try:
        with pytest.raises(LOST, match="does this port speak TLS") as lost:
            dial()
        assert not isinstance(lost.value, ConfigurationError)
    finally:
        thread.join()
        port.close()


def test_a_server_that_starts_again(spoilable: TlsServer, own: Papers) -> None:
    """With every hiccup on the way, the request goes through in the end."""
    with percolator.connect(spoilable.tls + options(own, own.client), some_namespace(), patience=60) as db:
        db.create_table("t")
        use(db)
        spoilable.kill()
        port = Failing(spoilable.port, own)
        done = []

        def come_back() -> None:
            for how in HICCUPS:
                port.fail(how)
                done.append(how)
            port.close()
            spoilable.start()

        thread = threading.Thread(target=come_back)
        thread.start()
        try:
            assert db.timestamp()
        finally:
            thread.join()
        assert done == HICCUPS


# The wrong kind of port.


def unreachable(url: str) -> tuple[str, float]:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as refused:
        percolator.connect(url, "tls")
    words = str(refused.value)
    assert "\n" not in words
    assert PASSWORD not in words
    return words, time.monotonic() - began


def test_a_tls_url_to_a_plain_port(papers: Papers) -> None:
    plain = Server(binary())
    try:
        words, seconds = unreachable(f"rediss://127.0.0.1:{plain.port}/0" + options(papers, None))
    finally:
        plain.close()
    assert words.endswith("check that it runs and can be reached, and that this port speaks TLS")
    assert seconds < 3 * CONNECT_PATIENCE  # one try, and time for a slow machine


def test_a_plain_url_to_a_tls_port(server: TlsServer) -> None:
    words, seconds = unreachable(server.tls.replace("rediss:", "redis:"))
    assert "write rediss:// if it speaks TLS" in words
    assert seconds < 3 * CONNECT_PATIENCE


def test_where_nobody_is_there_nothing_is_guessed() -> None:
    for url in ("redis://127.0.0.1", "rediss://127.0.0.1"):
        with pytest.raises(StoreUnavailable) as refused:
            percolator.connect(f"{url}:{free_port()}", "tls", patience=0.1)
        assert "TLS" not in str(refused.value)


# Time limits, and a name.


def test_time_limits_of_the_url_count() -> None:
    server = Server(binary())
    try:
        for place in (server.tcp, server.unix):
            url = f"{place}?socket_timeout=7.5&client_name=somebody"
            with percolator.connect(url, "n", timeout=500) as db, server.client() as client:
                assert db.store.one((b"PING",)) == b"PONG"
                (pipeline,) = open_pipelines(db)
                assert pipeline.socket.gettimeout() == 7.5
                assert "somebody" in [one["name"] for one in client.client_list()]
    finally:
        server.close()


def test_the_limit_for_connecting_holds_for_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}?socket_connect_timeout=0.2&socket_timeout=3600"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            percolator.connect(url, "n", patience=0.1)
        assert time.monotonic() - began < 30
