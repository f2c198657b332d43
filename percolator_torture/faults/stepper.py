"""Stopping a program between two of its operations, and leaving it there.

A `Stepper` runs a function in a greenlet. Whenever the function comes to an operation of a `FaultyStore`,
control returns to the test, which may let others run meanwhile, go on later, or never: that is a crash.
Nothing in the library knows of this; the places where a program stops are exactly its operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import greenlet

from percolator_core.store import Store
from percolator_core.transaction.client import Client, Timeouts
from percolator_torture.faults.plan import Operation

T = TypeVar("T")


class Point(NamedTuple):
    """Where a stepped function stands: ``before`` or ``after`` an operation, or ``asleep``.

    After an operation, ``replies`` has what the server answered. Who is asleep waits for time to pass.
    """

    when: Literal["before", "after", "asleep"]
    operation: Operation | None
    replies: tuple[Any, ...] = ()


class Stepper(Generic[T]):
    """Runs ``fn(*args)`` from one operation to the next. Belongs to the thread that made it.

    What is one request for the library is cut into single commands, since a server may run another client's
    commands between any two of them, and a crash may cut a request there.
    """

    def __init__(
        self, fn: Callable[..., T], *args: Any, before: bool = True, after: bool = False, singly: bool = True
    ) -> None:
        """Stops ``before`` and/or ``after`` each operation; ``singly`` False leaves requests whole."""
        self.at: Point | None = None
        """Where it stands; None before the first step and after the last."""
        self.done = False
        """Whether the function has returned or raised, or was abandoned."""
        self.abandoned = False
        """Whether it was."""
        self.error: BaseException | None = None
        """What the function raised."""
        self.singly = singly
        self._stops = {"before": before, "after": after, "asleep": True}
        self._value: T | None = None
        self._greenlet = _Stepped(self, fn, args)

    def step(self) -> Point | None:
        """Go on to the next point and return it; None when the function is over."""
        if not self.done:
            self.at = None
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.switch()
        return self.at

    def run(self, until: Callable[[Point], bool] | None = None) -> Point | None:
        """Go on to the next point of which ``until`` holds; to the function's end if none does.

        Raises RuntimeError when the function waits and nobody else runs: a stepped program does not let time
        pass.
        """
        naps = 0
        while (point := self.step()) is not None:
            if until is not None and until(point):
                return point
            naps += point.when == "asleep"
            if naps > _MOST_NAPS:
                raise RuntimeError("the stepped function waits for what never happens")
        return None

    def result(self) -> T:
        """What the function returned; runs it to its end; raises what it raised."""
        self.run()
        if self.error is not None:
            raise self.error
        if self.abandoned:
            raise RuntimeError("the stepped function was abandoned")
        return self._value  # type: ignore[return-value]

    def abandon(self) -> None:
        """Leave the function where it stands, as a crash does: it sends nothing more. Idempotent.

        What its process leaves behind is another matter, see `MortalClient.die`.
        """
        if self.done:
            return
        self.abandoned = True
        if self._greenlet.gr_frame is not None:
            # Its exception handlers run, but whatever they send ends them (`pause`).
            self._greenlet.throw(greenlet.GreenletExit)
        self.done, self.at = True, None

    def pause(self, point: Point) -> None:
        """For the store: stop the running function here, if this is a place to stop."""
        if self.abandoned:
            raise greenlet.GreenletExit
        if self._stops[point.when]:
            self.at = point
            parent = self._greenlet.parent
            assert parent is not None
            parent.switch()
            if self.abandoned:
                raise greenlet.GreenletExit

    def finish(self, value: T | None, error: BaseException | None) -> None:
        """For the greenlet: the function is over."""
        self._value, self.error, self.done, self.at = value, error, True, None


_MOST_NAPS = 1000


class _Stepped(greenlet.greenlet):
    def __init__(self, stepper: Stepper[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(self._run_function)
        self.stepper = stepper
        self._call = (fn, args)

    def _run_function(self) -> None:
        fn, args = self._call
        try:
            value = fn(*args)
        except greenlet.GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the stepper carries it to whoever asks
            self.stepper.finish(None, error)
        else:
            self.stepper.finish(value, None)


def current_stepper() -> Stepper[Any] | None:
    """The stepper that runs the current code, or None."""
    running = greenlet.getcurrent()
    return running.stepper if isinstance(running, _Stepped) else None


class MortalClient(Client):
    """A client whose liveness token is in the hands of a test."""

    def __init__(self, store: Store, timeouts: Timeouts) -> None:
        super().__init__(store, timeouts)
        self._renewing = threading.Lock()
        self._dead = False

    def die(self, *, token_outlives: bool = False) -> None:
        """From now on the owner of this client's locks counts as dead, whatever else it sends.

        With ``token_outlives`` the token is only not renewed any more: it ends within `client.TOKEN_LIFE`.
        """
        owner = self.owner()
        with self._renewing:
            self._dead = True
            if not token_outlives:
                Store.call_apart(self.store, (b"DEL", self.token_of(owner)))

    def revive(self) -> None:
        """Renew the token again, under the same name."""
        self._dead = False
        self._renew(self.owner())

    def _renew(self, owner: bytes) -> None:
        with self._renewing:
            if not self._dead:
                super()._renew(owner)
