"""A sink that writes documents of OpenSearch or Elasticsearch, by the bulk API."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from percolator_core.recipes.sinks import NotTaken, digest_of, seconds
from percolator_core.recipes.sinks.http_server import Answer, HTTPClient

LONGEST_ID: Final = 512
"""The limit of the bytes of a document's identifier, in OpenSearch and Elasticsearch."""

_BULK_ITEMS: Final = 500
_BULK_BYTES: Final = 5 << 20
"""Limits of one request; a single item may be larger."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
"""Seconds before a refused item is sent again; each pause is twice as long as the last."""

_TOO_MANY: Final = 429
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


def document_of(payload: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a payload; None, which deletes the document, for an empty payload.

    Raises ValueError for any other payload.
    """
    if not payload:
        return None
    found = json.loads(payload)
    if not isinstance(found, dict):
        raise ValueError(
            f"the payload is a JSON {type(found).__name__}: write an object, or nothing to delete"
        )
    return found


@dataclass(eq=False, slots=True)
class _Pending:
    """An item that a thread waits for. ``problem`` is the reason if it was not taken."""

    lines: bytes
    is_deletion: bool
    identifier: str
    problem: Exception | None = None
    is_settled: bool = False

    def settle(self, problem: Exception | None = None) -> None:
        """Set the outcome."""
        self.problem, self.is_settled = problem, True


@dataclass(slots=True)
class _Queue:
    """The items that wait for the next request."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    items: list[_Pending] = field(default_factory=list)
    is_sending: bool = False


class OpenSearchSink:
    """Stores the newest payload of each key as a document of an index, and deletes documents.

    The document's identifier is the key as text; a key that is longer than 512 bytes, or is no UTF-8, becomes
    ``sha256=`` and its digest. The document's version is the sequence (``version_type=external``), so the
    server itself ignores an item that is not newer. It remembers the version of a deleted document for the
    time ``index.gc_deletes``, 60 s by default: set it to an hour or more.

    Threads that call at the same time share a request of the bulk API. If the server refuses an item because
    it is busy (429), only this item is sent again.
    """

    def __init__(
        self,
        url: str,
        index: str,
        *,
        document: Callable[[bytes], Mapping[str, Any] | None] = document_of,
        timeout: float = 10.0,
        patience: float = 20.0,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Check the arguments, and send nothing.

        Args:
            url: ``http://`` or ``https://``, without user and password: put credentials into ``headers``.
            index: the name of the index, or of an alias with one index to write to.
            document: makes the document of a payload; None deletes the document. By default the payload is
                the JSON text of the document, and an empty payload deletes it.
            timeout: seconds to wait for an answer, above 0.
            patience: seconds for which an item is sent again while the server is busy, above 0. A call may
                wait for the request of another thread, and then for its own. So twice the sum of the two,
                plus the ``seconds`` of the queue, has to be below the observer's ``timeout``.
            headers: sent with every request, such as Authorization.
            context: the trusted authorities for https; by default the authorities of the system.

        Raises:
            ValueError: an argument is not valid.
        """
        if not index or index != index.lower() or set(index) & set(' "*\\<|,>/?#:'):
            raise ValueError(f"{index!r} is no name of an index: use lower-case letters, digits, '-' and '_'")
        self._server = HTTPClient(url, timeout=timeout, headers=headers, context=context)
        self._target = f"{self._server.target.rstrip('/')}/_bulk"
        self._index = index
        self._document = document
        self._patience = seconds(patience, "patience")
        self._queue = _Queue()

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and wait for its own part of the answer.

        Raises:
            NotTaken: the server refused the item, was busy for too long, or its answer has another form.
            OSError, http.client.HTTPException: no answer. The item may have been taken.
            ValueError: the payload is no document.
        """
        pending = self._pending(key, sequence, payload)
        queue = self._queue
        some: list[_Pending] = []
        leads = False
        try:
            with queue.condition:
                queue.items.append(pending)
                while queue.is_sending and not pending.is_settled:
                    queue.condition.wait()
                if not pending.is_settled:
                    leads = queue.is_sending = True
            # This thread sends until its own item is done; then another waiting thread continues.
            while not pending.is_settled:
                with queue.condition:
                    some = _first_items(queue.items)
                    del queue.items[: len(some)]
                self._send(some)
                with queue.condition:
                    queue.condition.notify_all()
        finally:
            # Also after an interruption, such as the end of the observer's timeout.
            if leads:
                with queue.condition:
                    queue.is_sending = False
                    for one in some:
                        if not one.is_settled:
                            one.settle(NotTaken("the sending thread was interrupted: take the item again"))
                    queue.condition.notify_all()
        if pending.problem is not None:
            raise pending.problem

    def _pending(self, key: bytes, sequence: int, payload: bytes) -> _Pending:
        document = self._document(payload)
        identifier = _identifier(key)
        action = {
            "_index": self._index,
            "_id": identifier,
            "version": sequence,
            "version_type": "external",
        }
        lines = [{"delete": action}] if document is None else [{"index": action}, document]
        # Without line breaks: each document is one line of the request.
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        return _Pending(text.encode(), document is None, identifier)

    def _send(self, items: Sequence[_Pending]) -> None:
        """Send the items until each is taken or refused. Sets the outcome of each."""
        until = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        headers = {**self._server.headers, "Content-Type": "application/x-ndjson"}
        while items:
            try:
                answer = self._server.request(
                    "POST", self._target, b"".join(one.lines for one in items), headers
                )
                busy = _settle(items, answer)
            except Exception as error:  # noqa: BLE001 - each waiting thread raises it
                for one in items:
                    one.settle(error)
                return
            if busy and time.monotonic() + pause > until:
                for one in busy:
                    one.settle(
                        NotTaken(f"the server was busy for {self._patience:g} s (429): it is tried again")
                    )
                return
            items = busy
            if items:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


def _settle(items: Sequence[_Pending], answer: Answer) -> list[_Pending]:
    """Set the outcome of each item that the answer decides, and return those that have to be sent again."""
    if answer.status == _TOO_MANY:
        return list(items)
    if not answer.is_success:
        raise NotTaken(f"{answer.shown}; correct the URL, the credentials or the server")
    busy: list[_Pending] = []
    for one, found in zip(items, _results(items, answer), strict=True):
        status = found["status"]
        if status == _TOO_MANY:
            busy.append(one)
            continue
        # 409: the server has this version or a newer one. 404 without an error: nothing was there to delete.
        is_absent = status == _NOT_FOUND and one.is_deletion and "error" not in found
        if 200 <= status < 300 or status == _CONFLICT or is_absent:
            one.settle()
            continue
        said = json.dumps(found.get("error"), ensure_ascii=False)
        one.settle(
            NotTaken(
                f"{answer.host} refused the document {one.identifier!r} with {status}: {said[:500]}; correct "
                "the mapping of the index or the document"
            )
        )
    return busy


def _results(items: Sequence[_Pending], answer: Answer) -> list[dict[str, Any]]:
    """Return the part of the answer for each item. Raises NotTaken if the answer has another form."""
    results: list[dict[str, Any]] = []
    matching: list[tuple[Any, type]] | None
    try:
        results = [result for part in json.loads(answer.body)["items"] for result in part.values()]
        matching = [(one["_id"], type(one["status"])) for one in results]
    except (ValueError, LookupError, TypeError, AttributeError):
        matching = None
    if matching != [(one.identifier, int) for one in items]:
        raise NotTaken(
            f"{answer.shown} is no answer of the bulk API for these items: check that the URL is that of "
            "OpenSearch or Elasticsearch"
        )
    return results


def _first_items(items: Sequence[_Pending]) -> list[_Pending]:
    """Return the first items, up to the limits of a request."""
    some: list[_Pending] = []
    size = 0
    for one in items[:_BULK_ITEMS]:
        size += len(one.lines)
        if some and size > _BULK_BYTES:
            break
        some.append(one)
    return some


def _identifier(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text and len(key) <= LONGEST_ID and not text.startswith("sha256="):
        return text
    return digest_of(key)
