"""The cache of files is bounded, and a value is loaded once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from percolator_core.base.cache import ByteCache
from percolator_core.errors import BaseDamaged
from tests.servers.plain import PATIENCE


def test_the_least_recently_used_value_is_forgotten() -> None:
    cache = ByteCache[bytes](10)
    loads = []

    def get(key: str, size: int = 4) -> bytes:
        def load() -> bytes:
            loads.append(key)
            return bytes(size)

        return cache.get(key, load, len)

    get("a"), get("b"), get("a"), get("c")
    assert loads == ["a", "b", "c"]
    assert cache.size == 8
    get("a"), get("b")
    assert loads == ["a", "b", "c", "b"]
    get("large", 11)
    assert cache.size == 8
    cache.forget(lambda key: key == "b")
    assert cache.size == 4
    get("b"), get("a")
    assert loads == ["a", "b", "c", "b", "large", "a"]


def test_many_threads_cause_one_load() -> None:
    cache = ByteCache[int](10)
    started, go_on = threading.Event(), threading.Event()
    loads = []

    def load() -> int:
        loads.append(1)
        started.set()
        assert go_on.wait(PATIENCE)
        return 7

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get("a", load, lambda _: 1))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(PATIENCE)
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [7] * 20
    assert loads == [1]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_load_that_fails_is_tried_again(error: type[BaseException]) -> None:
    cache = ByteCache[int](10)
    waits = threading.Event()
    outcomes: list[object] = []

    def fail() -> int:
        assert waits.wait(PATIENCE)
        raise error

    def first() -> None:
        try:
            cache.get("a", fail, lambda _: 1)
        except (OSError, KeyboardInterrupt) as one:
            outcomes.append(type(one))

    def second() -> None:
        try:
            outcomes.append(cache.get("a", lambda: 7, lambda _: 1))
        except OSError as one:
            outcomes.append(type(one))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    while "a" not in cache._loading:
        pass
    threads[1].start()
    waits.set()
    for thread in threads:
        thread.join()
    # The second one shares an error, but nobody else's interruption; or it came after the first one's end.
    assert error in outcomes
    assert outcomes.count(7) == 1 or (error is OSError and outcomes == [OSError, OSError])
    assert cache.get("a", lambda: 8, lambda _: 1) in {7, 8}


def test_a_forked_child_does_not_wait_for_a_load_of_its_parent() -> None:
    cache = ByteCache[int](10)
    started, go_on = threading.Event(), threading.Event()

    def load() -> int:
        started.set()
        assert go_on.wait(PATIENCE)
        return 7

    thread = threading.Thread(target=cache.get, args=("a", load, lambda _: 1))
    thread.start()
    assert started.wait(PATIENCE)
    child = os.fork()
    if not child:
        os._exit(cache.get("a", lambda: 3, lambda _: 1))
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 3


def test_a_signal_handler_of_the_thread_that_loads_does_not_wait_for_itself() -> None:
    cache = ByteCache[int](10)
    assert cache.get("a", lambda: 1 + cache.get("a", lambda: 2, lambda _: 1), lambda _: 1) == 3
    assert cache.get("a", lambda: 8, lambda _: 1) == 3


def test_a_size_that_cannot_be_told_leaves_no_load_behind() -> None:
    cache = ByteCache[int](10)
    sizes: dict[str, int] = {}
    with pytest.raises(KeyError):
        cache.get("a", lambda: 1, lambda _: sizes["a"])
    assert cache.get("a", lambda: 8, lambda _: 1) == 8


def test_values_are_loaded_at_once_but_for_those_that_are_here_or_on_their_way() -> None:
    cache = ByteCache[str](100)
    started, go_on = threading.Event(), threading.Event()
    loads: list[list[Any]] = []

    def load(missing: Sequence[Any]) -> dict[Any, str]:
        loads.append(sorted(missing))
        started.set()
        assert go_on.wait(PATIENCE)
        return {key: key.upper() for key in missing}

    found: list[list[str]] = []

    def get(*keys: str) -> None:
        some = cache.get_all("queue", keys, load, len)
        found.append([some[key] for key in keys])

    threads = [threading.Thread(target=get, args=("a", "b"))]
    threads[0].start()
    assert started.wait(PATIENCE)
    threads += [threading.Thread(target=get, args=keys) for keys in (("b",), ("a", "b", "c"), ("b", "a"))]
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert loads == [["a", "b"], ["c"]]
    assert sorted(found) == [["A", "B"], ["A", "B", "C"], ["B"], ["B", "A"]]
    assert cache.get("c", str, len) == "C"
    assert cache.size == 3


def test_what_an_interruption_has_kept_counts_once() -> None:
    """A finalizer runs after the value was found missing, and before the load begins."""
    cache: ByteCache[str] = ByteCache(100)

    class Together:
        interrupted = False

        def __hash__(self) -> int:
            if not self.interrupted:
                self.interrupted = True
                cache.get("a", lambda: "first", lambda _: 10)
            return 1

    cache.get_all(Together(), ["a"], lambda _: {"a": "second"}, lambda _: 10)
    assert cache.held("a") == "second"
    assert cache.size == 10


def test_the_failure_of_a_load_of_other_keys_is_not_shared() -> None:
    cache: ByteCache[str] = ByteCache(100)
    loads, has_begun, go_on = [], threading.Event(), threading.Event()

    def load(keys: Sequence[Hashable]) -> dict[Hashable, str]:
        loads.append(keys)
        if keys == ["damaged"]:
            has_begun.set()
            go_on.wait(PATIENCE)
            raise BaseDamaged("file:///base", "rows", "a column is damaged")
        return dict.fromkeys(keys, "value")

    def size_of(_: str) -> int:
        return 1

    with ThreadPoolExecutor() as threads:
        first = threads.submit(cache.get_all, "file", ["damaged"], load, size_of)
        assert has_begun.wait(PATIENCE)
        second = threads.submit(cache.get_all, "file", ["whole"], load, size_of)
        time.sleep(0.05)
        go_on.set()
        assert second.result(PATIENCE) == {"whole": "value"}
        assert isinstance(first.exception(10), BaseDamaged)
    assert loads == [["damaged"], ["whole"]]
