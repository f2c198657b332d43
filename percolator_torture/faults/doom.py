"""A process that kills itself with SIGKILL at a step of its work."""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, NamedTuple

from percolator_torture.faults.plan import Fault, Operation, Plan


class Step(NamedTuple):
    """The moment before or after a request with a script, while a process does the work of ``role``.

    An empty ``script`` is any moment.
    """

    role: str
    script: str = ""
    when: Literal["before", "after"] = "before"

    def __str__(self) -> str:
        return f"{self.role}, {self.when} {self.script}" if self.script else f"{self.role}, at any moment"


STEPS: Final = (
    Step("flush", "publish_base"),
    Step("compact", "publish_base"),
    Step("flush", "publish_base", "after"),
    Step("compact", "publish_base", "after"),
    Step("flush", "evict", "after"),
    Step("collect", "collect", "after"),
    Step("flush"),
    Step("compact"),
)
"""Before a manifest is published; after it; after a part of the rows was evicted or collected; any moment."""


class Doom:
    """A plan that kills the process at the step for which it is armed; other faults are those of ``plan``."""

    def __init__(self, plan: Plan) -> None:
        self.doing = ""
        """The role whose work the process is doing now."""
        self._plan = plan
        self._step: Step | None = None
        self._is_over = False

    def arm(self, line: str) -> None:
        """Arm it with a line of `order`."""
        role, script, when = line.split()[1:]
        self._step = Step(role, script, "after" if when == "after" else "before")

    def choose(self, operation: Operation) -> Fault | None:
        """Die, or choose a fault as a `Plan` does."""
        step = self._step
        if step is not None and self.doing == step.role:
            if self._is_over:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.script in operation.names:
                if step.when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                self._is_over = True  # so it dies before its next request, when this one has its reply
        return self._plan.choose(operation)


def order(step: Step) -> str:
    """Return the line by which a process is armed; it is empty for any moment."""
    if not step.script:
        return ""
    return f"die {step.role} {step.script} {step.when}"
