"""Stop a program between two of its operations.

A `Stepper` runs a function in a greenlet. Whenever the function reaches an operation of a `FaultyStore`,
control returns to the test. The test may then run other code and continue the function later. A test that
never continues it simulates a crash. The library has no code for steppers, so a program stops only at its
operations.
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
    """The position of a stepped function: ``before`` or ``after`` an operation, or ``asleep``.

    After an operation, ``replies`` has the server's answers. A function that is asleep waits for time to
    pass.
    """

    when: Literal["before", "after", "asleep"]
    operation: Operation | None
    replies: tuple[Any, ...] = ()


class Stepper(Generic[T]):
    """Runs ``fn(*args)`` from one operation to the next. Belongs to the thread that created it.

    Each request of the library is divided into single commands, because a server may run another client's
    commands between any two of them, and a crash may cut a request there.
    """

    def __init__(
        self, fn: Callable[..., T], *args: Any, before: bool = True, after: bool = False, singly: bool = True
    ) -> None:
        """Stops ``before`` and/or ``after`` each operation; with ``singly`` False requests stay whole."""
        self.at: Point | None = None
        """The current position; None before the first step and after the last."""
        self.done = False
        """True if the function has returned or raised, or was abandoned."""
        self.abandoned = False
        """True if the function was abandoned."""
        self.error: BaseException | None = None
        """The error of the function."""
        self.singly = singly
        self._stops = {"before": before, "after": after, "asleep": True}
        self._value: T | None = None
        self._greenlet = _Stepped(self, fn, args)

    def step(self) -> Point | None:
        """Go on to the next point and return it; None when the function has ended."""
        if not self.done:
            self.at = None
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.switch()
        return self.at

    def run(self, until: Callable[[Point], bool] | None = None) -> Point | None:
        """Go on to the next point for which ``until`` is true; to the end of the function if there is none.

        Raises RuntimeError if the function sleeps again and again: it waits for another program, and none can
        run before this method returns.
        """
        naps = 0
        while (point := self.step()) is not None:
            if until is not None and until(point):
                return point
            naps += point.when == "asleep"
            if naps > _MOST_NAPS:
                raise RuntimeError("the stepped function waits for an event that never happens")
        return None

    def result(self) -> T:
        """Run the function to its end; return its result, or raise its error."""
        self.run()
        if self.error is not None:
            raise self.error
        if self.abandoned:
            raise RuntimeError("the stepped function was abandoned")
        return self._value  # type: ignore[return-value]

    def abandon(self) -> None:
        """Leave the function at its position, as a crash does: it sends nothing more. Idempotent.

        The function's client still counts as alive; `MortalClient.die` changes that.
        """
        if self.done:
            return
        self.abandoned = True
        if self._greenlet.gr_frame is not None:
            # Its exception handlers run, but end at their first operation (`pause`).
            self._greenlet.throw(greenlet.GreenletExit)
        self.done, self.at = True, None

    def pause(self, point: Point) -> None:
        """For the store: stop the running function, if it stops here."""
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
        """For the greenlet: the function has ended."""
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
    """Return the stepper that runs the current code, or None."""
    running = greenlet.getcurrent()
    return running.stepper if isinstance(running, _Stepped) else None


class MortalClient(Client):
    """A client whose liveness token a test controls."""

    def __init__(self, store: Store, timeouts: Timeouts) -> None:
        super().__init__(store, timeouts)
        self._renewing = threading.Lock()
        self._dead = False

    def die(self, *, token_outlives: bool = False) -> None:
        """Make the owner of this client's locks count as dead from now on, whatever else it sends.

        With ``token_outlives`` the token is not deleted, but no longer renewed: it expires within
        `client.TOKEN_LIFE`.
        """
        owner = self.owner()
        with self._renewing:
            self._dead = True
            if not token_outlives:
                Store.call_apart(self.store, (b"DEL", self.token_of(owner)))

    def revive(self) -> None:
        """Renew the token again, under the same name."""
        self._dead = False
        self.renew(self.owner())

    def renew(self, owner: bytes) -> None:
        """Renew the token, unless the client is dead."""
        with self._renewing:
            if not self._dead:
                super().renew(owner)
