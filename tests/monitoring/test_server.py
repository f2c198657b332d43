"""The HTTP server: where it listens, what it answers, and that it holds nobody up."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.monitoring import Address, Monitor
from percolator_core.monitoring.server import AT_A_TIME
from tests.chains import chain_of, watch
from tests.monitoring.conftest import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from percolator_core import Database

PATIENT = 60.0


def a_state() -> State:
    return State(chain_of(watch("quick", lambda t, cell: None, "docs.text")))


def refused() -> Database:
    raise StoreUnavailable("away")


@pytest.fixture
def state() -> State:
    return a_state()


@pytest.fixture
def monitor(state: State) -> Iterator[Monitor]:
    with Monitor(Address("127.0.0.1", 0), state.subject(), refused) as made:
        yield made


def ask(monitor: Monitor, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(*monitor.address, timeout=PATIENT)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9100", "127.0.0.1", 9100),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:0", "::1", 0),
        ("::1:80", "::1", 80),
        ("name:65535", "name", 65535),
    ],
)
def test_places_to_listen(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == (host, port)


@pytest.mark.parametrize("text", ["", "host", ":80", "[]:80", "host:", "host:x", "65536", "-1", "1.5", "²"])
def test_what_is_no_place_to_listen(text: str) -> None:
    with pytest.raises(ValueError, match="write PORT or HOST:PORT"):
        Address.parse(text)


def test_an_address_as_text() -> None:
    assert [str(Address("::1", 5)), str(Address("here", 5))] == ["[::1]:5", "here:5"]


@pytest.mark.parametrize("host", ["127.0.0.1", "no such host", "x" * 300])
def test_where_nobody_can_listen(state: State, monitor: Monitor, host: str) -> None:
    taken = Address(host, monitor.address.port)
    with pytest.raises(ConfigurationError, match=f"cannot listen on {taken}: .*; name another HOST:PORT"):
        Monitor(taken, state.subject(), refused)


def test_pages(state: State, monitor: Monitor) -> None:
    code, content_type, body = ask(monitor, "/healthz")
    assert (code, content_type) == (200, "application/json")
    assert json.loads(body)["live"] is True
    state.stalled = 1000.0
    code, _, body = ask(monitor, "/healthz")
    assert (code, json.loads(body)["live"]) == (503, False)
    code, _, body = ask(monitor, "/readyz")
    assert code == 503
    assert json.loads(body) == {
        "ready": False,
        "why": "the store cannot be read: away",
        "begun": True,
        "stopping": False,
        "store": False,
        "inactive_observers": [],
    }
    code, content_type, body = ask(monitor, "/metrics?name=x")
    assert (code, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'percolator_runs_total{namespace="here",observer="quick"} 0.0\n' in body
    assert ask(monitor, "/metrics", "HEAD")[2] == b""
    code, _, body = ask(monitor, "/")
    assert (code, json.loads(body)["pages"]) == (404, ["/healthz", "/metrics", "/readyz"])
    assert ask(monitor, "/metrics", "POST")[0] == 501


def test_a_mistake_of_ours_is_an_answer_too(state: State, monitor: Monitor) -> None:
    state.counts = None  # type: ignore[assignment]
    assert ask(monitor, "/metrics")[0] == 500
    assert ask(monitor, "/healthz")[0] == 200


def ask_by(connection: socket.socket) -> bytes:
    """The answer; nothing when the connection is turned away, which may come as a reset."""
    try:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the end."""
    found = b""
    try:
        while chunk := connection.recv(4096):
            found += chunk
    except ConnectionResetError:
        pass
    return found


def test_who_says_nothing_takes_one_of_few_places(monitor: Monitor) -> None:
    silent = [socket.create_connection(monitor.address, PATIENT) for _ in range(AT_A_TIME)]
    try:
        with socket.create_connection(monitor.address, PATIENT) as turned_away:
            assert ask_by(turned_away) == b""
        assert ask_by(silent[0]).startswith(b"HTTP/1.0 200")
        end = time.monotonic() + PATIENT
        while True:  # the place is free a moment after the answer
            try:
                assert ask(monitor, "/healthz")[0] == 200
                break
            except (ConnectionError, http.client.HTTPException):
                assert time.monotonic() < end
    finally:
        for connection in silent:
            connection.close()


def test_the_end_waits_for_no_request(state: State) -> None:
    asked, over = threading.Event(), threading.Event()

    def never() -> Any:
        asked.set()
        over.wait(PATIENT)
        raise StoreUnavailable("at last")

    monitor = Monitor(Address("127.0.0.1", 0), state.subject(), never)
    with socket.create_connection(monitor.address, PATIENT) as waiting:
        waiting.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert asked.wait(PATIENT)
        monitor.close()
        assert not over.is_set()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(monitor.address, PATIENT)
        over.set()
        assert b"503" in read_all(waiting)


def test_it_answers_while_the_store_does_not(state: State) -> None:
    asked, over = threading.Event(), threading.Event()

    def never() -> Any:
        asked.set()
        over.wait(PATIENT)
        raise StoreUnavailable("at last")

    with Monitor(Address("127.0.0.1", 0), state.subject(), never) as monitor:
        waiting = threading.Thread(target=ask, args=(monitor, "/metrics"))
        waiting.start()
        assert asked.wait(PATIENT)
        assert ask(monitor, "/healthz")[0] == 200
        over.set()
        waiting.join(PATIENT)


def test_ipv6(state: State) -> None:
    try:
        monitor = Monitor(Address("::1", 0), state.subject(), refused)
    except ConfigurationError:
        pytest.skip("no IPv6 here")
    with monitor:
        assert monitor.url.startswith("http://[::1]:")
        assert ask(monitor, "/healthz")[0] == 200
