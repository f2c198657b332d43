"""The sink of OpenSearch, against a server that speaks the bulk API as far as the sink uses it."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from percolator_core import Database
from percolator_core.recipes import NotTaken, OpenSearchSink
from tests.recipes.exporting import export_all
from tests.servers.plain import until

Judge = Callable[[str, dict[str, Any]], dict[str, Any] | None]


class Search(ThreadingHTTPServer):
    """Documents with external versions; ``judge`` may answer an item in its place."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, Any] = {}
        self.versions: dict[str, int] = {}
        self.taken: defaultdict[str, list[Any]] = defaultdict(list)
        self.bulks: list[list[str]] = []
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.judge: Judge = lambda _kind, _action: None
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def bulk(self, body: bytes) -> dict[str, Any]:
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.splitlines()]
        items: list[dict[str, Any]] = []
        with self.lock:
            self.bulks.append([])
            while lines:
                ((kind, action),) = lines.pop(0).items()
                document = lines.pop(0) if kind == "index" else None
                self.bulks[-1].append(action["_id"])
                result = self.judge(kind, action) or self.one(kind, action, document)
                items.append({kind: {"_index": action["_index"], "_id": action["_id"], **result}})
        errors = any("error" in result for item in items for result in item.values())
        return {"took": 1, "errors": errors, "items": items}

    def one(self, kind: str, action: dict[str, Any], document: Any) -> dict[str, Any]:
        name, version = action["_id"], action["version"]
        newest = self.versions.get(name, -1)
        if {"external": version <= newest, "external_gte": version < newest}[action["version_type"]]:
            return {"status": 409, "error": {"type": "version_conflict_engine_exception"}}
        self.versions[name] = version
        self.taken[name].append(document)
        if kind == "delete":
            found = self.documents.pop(name, None) is not None
            return {"status": 200 if found else 404, "result": "deleted" if found else "not_found"}
        self.documents[name] = document
        return {"status": 201, "result": "created"}


class Handler(BaseHTTPRequestHandler):
    server: Search

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers.items())))
        self.server.gate.wait()
        if self.server.answers:
            status, answer = self.server.answers.pop(0)
        else:
            status, answer = 200, json.dumps(self.server.bulk(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def search() -> Iterator[Search]:
    with Search() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.gate.set()
        server.shutdown()
        serving.join()


def test_the_newest_document_stays(search: Search) -> None:
    sink = OpenSearchSink(f"{search.url}/base/", "prices", headers={"Authorization": "Bearer t"})
    sink.take("tée".encode(), 5, '{"a":\n "ü"}'.encode())
    for sequence in (4, 5):
        sink.take("tée".encode(), sequence, b'{"a": "old"}')
    sink.take(b"gone", 7, b"{}")
    sink.take(b"gone", 8, b"")
    sink.take(b"gone", 7, b"{}")
    sink.take(b"never", 1, b"")
    assert search.documents == {"tée": {"a": "ü"}}
    assert search.versions == {"tée": 5, "gone": 8, "never": 1}
    path, headers = search.seen[0]
    assert path == "/base/_bulk"
    assert headers["Content-Type"] == "application/x-ndjson"
    assert headers["Authorization"] == "Bearer t"


def test_identifiers_are_short_and_differ(search: Search) -> None:
    sink = OpenSearchSink(search.url, "prices")
    keys = [b"a", b"\xff", b"", b"a" * 512, b"a" * 513, b"a" * 514]
    digest = None
    for key in keys:
        sink.take(key, 1, b"{}")
        digest = search.bulks[-1][0]
    assert digest is not None
    sink.take(digest.encode(), 1, b"{}")
    assert len(search.documents) == len(keys) + 1
    assert max(map(len, search.documents)) == 512


def test_a_document_can_be_made_of_another_payload(search: Search) -> None:
    sink = OpenSearchSink(search.url, "p", document=lambda payload: {"price": int(payload)})
    sink.take(b"k", 1, b"17")
    assert search.documents == {"k": {"price": 17}}
    with pytest.raises(ValueError, match="invalid literal"):
        sink.take(b"k", 2, b"x")
    for payload, why in ((b"[1]", "list"), (b'{"a": NaN}', "NaN|JSON compliant"), (b"x", "Expecting value")):
        with pytest.raises(ValueError, match=why):
            OpenSearchSink(search.url, "p").take(b"k", 3, payload)
    assert search.versions == {"k": 1}


def test_concurrent_calls_share_a_request_and_fail_alone(search: Search) -> None:
    def judge(kind: str, action: dict[str, Any]) -> dict[str, Any] | None:
        if action["_id"] == "bad":
            return {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "no date"}}
        if action["_id"] == "down":
            return {"status": 503, "error": {"type": "unavailable_shards_exception"}}
        return None

    search.judge = judge
    search.gate.clear()
    sink = OpenSearchSink(search.url, "prices")
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(sink.take, b"first", 1, b"{}")
        until(lambda: len(search.seen) == 1)
        names = ["bad", "down", *(f"k{number}" for number in range(9))]
        others = {name: pool.submit(sink.take, name.encode(), 1, b"{}") for name in names}
        until(lambda: len(sink._queue.items) == len(names))
        search.gate.set()
        first.result()
        for name, other in others.items():
            if name in {"bad", "down"}:
                with pytest.raises(NotTaken, match=rf"refused the document '{name}' with (400|503)"):
                    other.result()
            else:
                other.result()
    assert [sorted(names) for names in search.bulks] == [["first"], sorted(others)]


def test_only_refused_items_are_sent_again(search: Search) -> None:
    refusals = {"a": 2, "b": 1}

    def judge(kind: str, action: dict[str, Any]) -> dict[str, Any] | None:
        if refusals.get(action["_id"], 0):
            refusals[action["_id"]] -= 1
            return {"status": 429, "error": {"type": "es_rejected_execution_exception"}}
        return None

    search.judge = judge
    search.answers = [(429, b"too many requests")]
    search.gate.clear()
    sink = OpenSearchSink(search.url, "prices")
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(sink.take, b"first", 1, b"{}")
        until(lambda: len(search.seen) == 1)
        others = [pool.submit(sink.take, name, 1, b"{}") for name in (b"a", b"b", b"c")]
        until(lambda: len(sink._queue.items) == 3)
        search.gate.set()
        for one in (first, *others):
            one.result()
    assert [sorted(names) for names in search.bulks] == [["first"], ["a", "b", "c"], ["a", "b"], ["a"]]


def test_a_server_that_stays_busy(search: Search) -> None:
    search.judge = lambda _kind, _action: {"status": 429, "error": {}}
    with pytest.raises(NotTaken, match=r"busy for 0.15 s"):
        OpenSearchSink(search.url, "prices", patience=0.15).take(b"k", 1, b"{}")
    assert set(map(tuple, search.bulks)) == {("k",)}
    assert search.documents == {}


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (200, b"<html>", "no answer of the bulk API"),
        (200, b"[]", "no answer of the bulk API"),
        (200, b'{"items": []}', "no answer of the bulk API"),
        (200, b'{"items": [{"index": {"_id": "other", "status": 201}}]}', "no answer of the bulk API"),
        (200, b'{"items": [{"index": {"_id": "k", "status": "201"}}]}', "no answer of the bulk API"),
        (200, b'{"items": [{"index": 7}]}', "no answer of the bulk API"),
        (200, b'{"items": 7}', "no answer of the bulk API"),
        (401, b"who?", r"127.0.0.1 answered 401 .*'who\?'; correct the URL"),
        (302, b"", "answered 302"),
        (503, b"", "answered 503"),
    ],
)
def test_answers_of_another_form(search: Search, status: int, answer: bytes, why: str) -> None:
    sink = OpenSearchSink(search.url, "prices")
    search.answers = [(status, answer)]
    with pytest.raises(NotTaken, match=why):
        sink.take(b"k", 1, b"{}")
    sink.take(b"k", 1, b"{}")  # the next call is not held up
    assert search.documents == {"k": {}}


def test_a_missing_index_is_no_deletion(search: Search) -> None:
    search.judge = lambda _kind, _action: {"status": 404, "error": {"type": "index_not_found_exception"}}
    with pytest.raises(NotTaken, match="index_not_found"):
        OpenSearchSink(search.url, "prices").take(b"k", 1, b"")


def test_no_server() -> None:
    with Search() as search:
        url = search.url
    with pytest.raises(ConnectionRefusedError):
        OpenSearchSink(url, "prices").take(b"k", 1, b"{}")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="put credentials into headers"):
        OpenSearchSink("https://user:word@h/", "prices")
    for index in ("", "Prices", "a/b", "a b"):
        with pytest.raises(ValueError, match="no name of an index"):
            OpenSearchSink("http://h/", index)
    with pytest.raises(ValueError, match="timeout is in seconds and above 0"):
        OpenSearchSink("http://h/", "prices", timeout=0)
    with pytest.raises(ValueError, match="patience is in seconds and above 0"):
        OpenSearchSink("http://h/", "prices", patience=0)


def test_under_workers(db: Database, search: Search) -> None:
    rng = random.Random(3)

    def judge(kind: str, action: dict[str, Any]) -> dict[str, Any] | None:
        return {"status": rng.choice([429, 503]), "error": {}} if rng.random() < 0.2 else None

    search.judge = judge
    sink = OpenSearchSink(search.url, "prices", document=lambda payload: {"text": payload.decode()})
    committed = export_all(db, sink)
    assert {name: [one["text"].encode() for one in taken] for name, taken in search.taken.items()} == {
        key.decode(): payloads for key, payloads in committed.items()
    }
