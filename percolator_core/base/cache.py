"""A cache of what was read from files, shared by threads and bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from percolator_core.runtime import process

T = TypeVar("T")


class ByteCache(Generic[T]):
    """Values by key, the least recently used of which are forgotten when ``capacity`` bytes are exceeded.

    A value that is larger than the capacity is returned and not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[T]] = {}
        self._lock = process.Lock()
        process.call_after_fork(self)

    def get(self, key: Hashable, load: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Return the value of ``key``; load it if it is not here.

        Threads that want a value while another one loads it wait for that load. If the load fails, they get
        its exception; if it is interrupted, one of them loads.
        """
        while True:
            with self._lock:
                found = self._values.get(key)
                if found is not None:
                    self._values.move_to_end(key)
                    return found[0]
                loading = self._loading.get(key)
                if loading is None:
                    mine = self._loading[key] = Future()
                    break
            try:
                return loading.result()
            except CancelledError:
                continue
        try:
            value = load()
        except BaseException as error:
            self._loading.pop(key, None)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        with self._lock:
            self._loading.pop(key, None)
            self._keep(key, value, size_of(value))
        mine.set_result(value)
        return value

    def after_fork(self) -> None:
        """Forget the loads of threads that do not exist in this child."""
        self._loading = {}

    def forget(self, keep: Callable[[Hashable], bool]) -> None:
        """Forget the values whose keys ``keep`` does not accept."""
        with self._lock:
            for key in [key for key in self._values if not keep(key)]:
                self.size -= self._values.pop(key)[1]

    def _keep(self, key: Hashable, value: T, size: int) -> None:
        if size > self.capacity:
            return
        self._values[key] = value, size
        self.size += size
        while self.size > self.capacity:
            _, (_, gone) = self._values.popitem(last=False)
            self.size -= gone
