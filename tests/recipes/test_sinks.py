"""The sinks: what is not newer has no effect, what was not taken is told, and both under real workers."""

from __future__ import annotations

import functools
import random
import sqlite3
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from percolator_core import Database
from percolator_core.recipes import HTTPSink, KafkaSink, NotTaken, SQLiteSink
from tests.recipes.exporting import export_all
from tests.servers.plain import PATIENCE
from tests.servers.tls import Authority

# SQLite.


def keep_log(connection: sqlite3.Connection, key: bytes, sequence: int, payload: bytes) -> None:
    connection.execute("INSERT INTO log VALUES (?, ?, ?)", (key, sequence, payload))


def a_log(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE log (key BLOB, sequence INTEGER, payload BLOB)")
    return connection


def test_sqlite_keeps_the_newest(tmp_path: Path) -> None:
    with SQLiteSink(tmp_path / "sink", 'a "table"') as sink:
        assert sink.get("k") is None
        for sequence, payload in [(5, b"five"), (4, b"four"), (5, b"again"), (2**53 - 1, b"last"), (6, b"")]:
            sink.take(b"k", sequence, payload)
        sink.take(b"l", 1, b"other")
    sink.close()
    with SQLiteSink(str(tmp_path / "sink"), 'a "table"') as sink:
        assert sink.get(b"k") == (2**53 - 1, b"last")
        assert sink.get("l") == (1, b"other")
    connection = sqlite3.connect(tmp_path / "sink")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_sqlite_has_each_effect_once(tmp_path: Path) -> None:
    log = a_log(tmp_path / "sink")
    broken = [True]

    def effect(connection: sqlite3.Connection, key: bytes, sequence: int, payload: bytes) -> None:
        keep_log(connection, key, sequence, payload)
        if sequence == 2 and broken.pop():
            raise ValueError("not that one")

    with SQLiteSink(tmp_path / "sink", effect=effect) as sink:
        sink.take(b"k", 1, b"1")
        with pytest.raises(ValueError, match="not that one"):
            sink.take(b"k", 2, b"2")
        assert sink.get("k") == (1, b"1")
        broken.append(False)
        for sequence in (1, 2, 2, 1, 3):
            sink.take(b"k", sequence, b"%d" % sequence)
    assert log.execute("SELECT sequence FROM log").fetchall() == [(1,), (2,), (3,)]
    log.close()


def test_sqlite_takes_calls_from_threads_and_other_connections(tmp_path: Path) -> None:
    log = a_log(tmp_path / "sink")
    calls = [(b"k%d" % (number % 3), number) for number in range(1, 100)] * 2
    random.Random(7).shuffle(calls)
    with (
        SQLiteSink(tmp_path / "sink", effect=keep_log) as one,
        SQLiteSink(tmp_path / "sink", effect=keep_log) as other,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda at: (one, other)[at % 2].take(*calls[at], b""), range(len(calls))))
        assert [one.get(b"k%d" % number) for number in range(3)] == [(99, b""), (97, b""), (98, b"")]
    for number in range(3):
        found = log.execute("SELECT sequence FROM log WHERE key = ? ORDER BY rowid", (b"k%d" % number,))
        sequences = [sequence for (sequence,) in found]
        assert sequences == sorted(set(sequences))
    log.close()


def test_sqlite_is_opened_by_many_at_once(tmp_path: Path) -> None:
    # As the processes of one `percolator worker` do, all of them at their start.
    together = threading.Barrier(4)

    def use(name: int) -> None:
        try:
            for number in range(8):
                together.wait(PATIENCE)
                with SQLiteSink(tmp_path / f"sink{number}") as sink:
                    sink.take(b"k", name + 1, b"")
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    for number in range(8):
        with SQLiteSink(tmp_path / f"sink{number}") as sink:
            assert sink.get("k") == (4, b"")


class Busy(sqlite3.Connection):
    """A connection whose first wishes for a journal meet another process that has one as well."""

    refusals = 2

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if "journal_mode" in statement and Busy.refusals:
            Busy.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return super().execute(statement, *parameters)


def test_sqlite_waits_for_a_lock_that_sqlite_does_not_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Busy))
    with SQLiteSink(tmp_path / "sink") as sink:
        sink.take(b"k", 1, b"")
    assert Busy.refusals == 0
    monkeypatch.setattr(Busy, "refusals", 1)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        SQLiteSink(tmp_path / "sink", timeout=0.0)


def test_sqlite_heals_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def observed(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", observed)
    with SQLiteSink(tmp_path / "sink") as sink:
        opened[-1].execute("BEGIN IMMEDIATE")
        sink.take(b"k", 1, b"1")
        assert sink.get("k") == (1, b"1")


def test_sqlite_refuses_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "sink").write_bytes(b"something else entirely" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        SQLiteSink(tmp_path / "sink")


def test_sqlite_under_workers(db: Database, tmp_path: Path) -> None:
    log = a_log(tmp_path / "sink")
    with SQLiteSink(tmp_path / "sink", effect=keep_log) as sink:
        committed = export_all(db, sink)
        for key, payloads in committed.items():
            found = log.execute("SELECT payload FROM log WHERE key = ? ORDER BY rowid", (key,)).fetchall()
            assert [payload for (payload,) in found] == payloads
            newest = sink.get(key)
            assert newest is not None
            assert newest[1] == payloads[-1]
    log.close()


# Kafka.


class Broker:
    """A producer and its topic: what was sent lingers until it is flushed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lingering: list[tuple[bytes, bytes, list[tuple[str, bytes]]]] = []
        self.partitions: list[list[tuple[bytes, bytes, list[tuple[str, bytes]]]]] = [[], []]
        self.waited: list[float] = []
        self.losing = random.Random(5)

    def send(self, topic: str, *, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
        assert topic == "prices"
        with self._lock:
            self._lingering.append((key, value, headers))
            lost = self.losing.random() < 0.1
        return Acknowledgement(self, lost)

    def flush(self) -> None:
        with self._lock:
            for message in self._lingering:
                self.partitions[crc32(message[0]) % 2].append(message)
            self._lingering.clear()

    def consumed(self, key: bytes) -> list[bytes]:
        """What a consumer makes of a key's partition: it drops what is not newer."""
        last, found = 0, []
        for sent, value, headers in self.partitions[crc32(key) % 2]:
            sequence = KafkaSink.sequence_of(headers)
            if sent == key and sequence is not None and sequence > last:
                last = sequence
                found.append(value)
        return found


class Acknowledgement:
    def __init__(self, broker: Broker, lost: bool) -> None:
        self._broker = broker
        self._lost = lost

    def get(self, timeout: float) -> None:
        self._broker.waited.append(timeout)
        if self._lost:
            raise TimeoutError("sent, but not acknowledged")


def test_kafka_sends_key_and_sequence_and_waits() -> None:
    broker = Broker()
    broker.losing.random = lambda: 1.0  # type: ignore[method-assign]
    KafkaSink(broker, "prices", timeout=3.0).take(b"k", 17, b"payload")
    assert [message for partition in broker.partitions for message in partition] == [
        (b"k", b"payload", [("sequence", b"17")])
    ]
    assert broker.waited == [3.0]
    assert KafkaSink.sequence_of([("other", b"x"), ("sequence", b"17")]) == 17
    assert KafkaSink.sequence_of([]) is None
    broker.losing.random = lambda: 0.0  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="not acknowledged"):
        KafkaSink(broker, "prices").take(b"k", 18, b"payload")


def test_kafka_under_workers(db: Database) -> None:
    broker = Broker()
    committed = export_all(db, KafkaSink(broker, "prices"))
    assert {key: broker.consumed(key) for key in committed} == committed


# HTTP.


class Receiver(ThreadingHTTPServer):
    """A server that knows what it has; or answers as it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.taken: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self.last: dict[bytes, int] = {}
        self.losing = False
        self.lock = threading.Lock()
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def judge(self, key: bytes, sequence: int, payload: bytes) -> int:
        """Compare and keep, in one step."""
        with self.lock:
            if self.answers:
                return self.answers.pop(0)
            if sequence <= self.last.get(key, 0):
                return 409
            self.last[key] = sequence
            self.taken[key].append(payload)
            # The effect is there, the answer says that it is not.
            return 500 if self.losing and len(self.requests) % 7 == 0 else 201


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def _take(self) -> None:
        payload = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.command, self.path, dict(self.headers.items()), payload))
        key = self.path.rpartition("/")[2].encode()
        status = self.server.judge(key, int(self.headers["Export-Sequence"]), payload)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"why?")

    do_POST = do_PUT = do_GET = _take  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def test_http_sends_key_sequence_and_payload(receiver: Receiver) -> None:
    sink = HTTPSink(f"{receiver.url}/items/{{key}}?x=1", method="PUT", headers={"Authorization": "Bearer t"})
    sink.take(b"a/b \xff", 17, b"payload")
    sink.take(b"a/b \xff", 17, b"payload")
    (method, path, headers, payload), again = receiver.requests
    assert (method, path, payload) == ("PUT", "/items/a%2Fb%20%FF?x=1", b"payload")
    assert headers["Idempotency-Key"] == "a%2Fb%20%FF:17"
    assert headers["Export-Sequence"] == "17"
    assert headers["Authorization"] == "Bearer t"
    assert again[2] == headers


def test_http_idempotency_keys_are_short_and_differ(receiver: Receiver) -> None:
    sink = HTTPSink(receiver.url)
    for key in (b"a" * 60_000, b"a" * 60_001, b"a", b"a:1"):
        sink.take(key, 10**15, b"")
    sink.take(b"a", 10**15 + 1, b"")
    sent = [headers["Idempotency-Key"] for _, _, headers, _ in receiver.requests]
    assert len(set(sent)) == 5
    assert max(map(len, sent)) < 130


@pytest.mark.parametrize(
    ("status", "taken"), [(200, True), (204, True), (409, True), (302, False), (404, False)]
)
def test_http_tells_by_the_status(receiver: Receiver, status: int, taken: bool) -> None:
    receiver.answers = [status]
    sink = HTTPSink(receiver.url + "/secret-path")
    if taken:
        sink.take(b"k", 1, b"")
    else:
        with pytest.raises(NotTaken, match=rf"127.0.0.1 answered {status} .*: 'why\?'") as raised:
            sink.take(b"k", 1, b"")
        assert "secret" not in str(raised.value)
    assert len(receiver.requests) == 1


def test_http_does_not_wait_for_ever() -> None:
    # It listens, and nobody accepts.
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as silent, pytest.raises(TimeoutError):
        HTTPSink(f"http://127.0.0.1:{silent.server_address[1]}", timeout=0.05).take(b"k", 1, b"")
    with pytest.raises(ConnectionRefusedError):
        HTTPSink(f"http://127.0.0.1:{silent.server_address[1]}").take(b"k", 1, b"")


def test_https_trusts_whom_it_is_told_to(receiver: Receiver, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.certificate, ours.key)
    # In the thread of the request: a handshake that fails must not end the server's loop.
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True, do_handshake_on_connect=False)
    receiver.handle_error = lambda *_: None  # type: ignore[method-assign]
    receiver.scheme = "https"
    trusting = ssl.create_default_context(cafile=authority.root.certificate)
    HTTPSink(f"{receiver.url}/k", context=trusting).take(b"k", 1, b"payload")
    assert receiver.taken[b"k"] == [b"payload"]
    with pytest.raises(ssl.SSLCertVerificationError):
        HTTPSink(f"{receiver.url}/k").take(b"k", 2, b"payload")
    assert receiver.taken[b"k"] == [b"payload"]


def test_http_under_workers(db: Database, receiver: Receiver) -> None:
    receiver.losing = True
    committed = export_all(db, HTTPSink(receiver.url + "/{key}"))
    assert receiver.taken == committed
    assert len(receiver.requests) > sum(map(len, committed.values()))


@pytest.mark.parametrize("url", ["ftp://h/", "h/path", "http:///path", "https://user:word@h/"])
def test_http_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ValueError, match="put credentials into headers") as raised:
        HTTPSink(url)
    assert "word@" not in str(raised.value)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="method is POST or PUT, not GET"):
        HTTPSink("http://h/", method="GET")  # type: ignore[arg-type]
    for make in (
        lambda: HTTPSink("http://h/", timeout=0),
        lambda: KafkaSink(None, "t", timeout=float("nan")),
    ):
        with pytest.raises(ValueError, match="timeout is in seconds and above 0"):
            make()
