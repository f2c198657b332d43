"""A cache of objects that were read from files. Threads may share it. Its size in bytes is bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from percolator_core.runtime import process

T = TypeVar("T")


class _Loading(Future[Mapping[Hashable, T]], Generic[T]):
    """A load that is under way, in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: Sequence[Hashable] = ()
        self.thread = threading.get_ident()


class NotHeld(Exception):
    """A value is not in the cache."""


class ByteCache(Generic[T]):
    """Values by key. When they exceed ``capacity`` bytes, the least recently used ones are forgotten.

    A value that is larger than the capacity is returned, but not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._loading: dict[Hashable, _Loading[T]] = {}
        self._lock = process.Lock()
        process.call_after_fork(self)

    def get(self, key: Hashable, load: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Return the value of ``key``; load it if it is not here.

        While one thread loads a value, other threads that want it wait. If the load fails, the waiting
        threads get its exception. If the load is interrupted, one of the waiting threads loads the value. A
        signal handler or finalizer that runs in the loading thread does not wait: it loads the value itself.
        """
        found = self.held(key)
        if found is not None:
            return found
        return self.get_all(key, [key], lambda _: {key: load()}, size_of)[key]

    def get_all(
        self,
        queue: Hashable,
        keys: Sequence[Hashable],
        load: Callable[[Sequence[Hashable]], Mapping[Hashable, T]],
        size_of: Callable[[T], int],
    ) -> Mapping[Hashable, T]:
        """Return the values of ``keys``, as `get` does; ``load`` is called once, with the keys not here.

        Calls with the same ``queue`` load one after another. If a load fails, and a call that waited for it
        wants other keys than the load, that call loads its own keys.
        """
        mine: _Loading[T] = _Loading()
        found: dict[Hashable, T] = {}
        try:
            while True:
                with self._lock:
                    found.update(self._held_of(keys))
                    missing = [key for key in keys if key not in found]
                    if not missing:
                        return found
                    loading = self._loading.setdefault(queue, mine)
                if loading is mine:
                    mine.keys = missing
                    return {**found, **self._load(missing, mine, load, size_of)}
                if loading.thread == mine.thread:
                    return {**found, **load(missing)}
                try:
                    found.update(loading.result())
                except CancelledError:
                    continue
                except Exception:
                    if loading.keys == missing:
                        raise
        finally:
            if self._loading.get(queue) is mine:
                del self._loading[queue]
            mine.cancel()  # does nothing if it has a result

    def held(self, key: Hashable) -> T | None:
        """Return the value of ``key`` if it is here, otherwise None."""
        found = self._values.get(key)
        if found is None:
            return None
        try:
            self._values.move_to_end(key)
        except KeyError:
            pass  # another thread has just forgotten it; a lock would make each hit slower
        return found[0]

    def held_only(self) -> ByteCache[T]:
        """Return a view of this cache for callers that must not wait: it raises NotHeld and loads nothing."""
        return _HeldOnly(self._values)

    def _held_of(self, keys: Iterable[Hashable]) -> dict[Hashable, T]:
        found = {key: self.held(key) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def _load(
        self,
        keys: Sequence[Hashable],
        loading: _Loading[T],
        load: Callable[[Sequence[Hashable]], Mapping[Hashable, T]],
        size_of: Callable[[T], int],
    ) -> Mapping[Hashable, T]:
        """Load and keep values, and give them to the threads that wait for them."""
        try:
            values = load(keys)
        except Exception as error:
            loading.set_exception(error)
            raise
        with self._lock:
            for key, value in values.items():
                self._keep(key, value, size_of(value))
        loading.set_result(values)
        return values

    def after_fork(self) -> None:
        """Forget the loads of threads that do not exist in this child."""
        self._loading = {}

    def forget(self, keep: Callable[[Hashable], bool]) -> None:
        """Forget each value unless ``keep`` returns True for its key."""
        with self._lock:
            for key in [key for key in self._values if not keep(key)]:
                self.size -= self._values.pop(key)[1]

    def _keep(self, key: Hashable, value: T, size: int) -> None:
        if size > self.capacity:
            return
        # A signal handler or finalizer may have kept the value after this thread did not find it.
        _, before = self._values.get(key, (None, 0))
        self._values[key] = value, size
        self.size += size - before
        while self.size > self.capacity:
            _, (_, gone) = self._values.popitem(last=False)
            self.size -= gone


class _HeldOnly(ByteCache[T]):
    """The values of another cache, without loads."""

    def __init__(self, values: OrderedDict[Hashable, tuple[T, int]]) -> None:
        super().__init__(0)
        self._values = values

    def get_all(
        self,
        queue: Hashable,  # noqa: ARG002
        keys: Sequence[Hashable],
        load: Callable[[Sequence[Hashable]], Mapping[Hashable, T]],  # noqa: ARG002
        size_of: Callable[[T], int],  # noqa: ARG002
    ) -> Mapping[Hashable, T]:
        found = self._held_of(keys)
        if len(found) < len(keys):
            raise NotHeld
        return found
