"""Monitor a chain: compare it with thresholds, record a history, and start a drain if one is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.providers.standard.operators.trigger_dagrun import DagIsPaused, TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from percolator_airflow.operators.base import StoreOperator
from percolator_core.admin.demand import demand
from percolator_core.admin.locks import locks
from percolator_core.admin.samples import record, samples
from percolator_core.admin.status import status
from percolator_core.admin.thresholds import Runs, breaches
from percolator_core.observers.explain import validate
from percolator_core.observers.scheduling import ThresholdsDeclaration
from percolator_core.observers.yaml_file import Problems, YamlFile

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database

_CARRY_ON: Final = "the next run checks everything again"
_LOCKS: Final = 1_000
"""At most this many locks are read, the oldest ones."""

NEEDS_DRAIN: Final = "needs_drain"
"""The XCom that is true if cells are due and no worker or drain takes them."""


class MonitorOperator(StoreOperator):
    """Compare a chain's state with thresholds, and record the state for the plots.

    The task reads only counts that the store keeps anyway, and the oldest locks. The result has the
    ``breaches``, one sentence each, and the numbers ``backlog``, ``due``, ``quarantine``, ``locks``,
    ``memory``, ``workers`` and ``drains``. The XCom ``needs_drain`` is true if cells are due that no
    continuous worker takes, and no drain is alive.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`.
        thresholds: in the form of ``airflow: monitor: thresholds:``; None means the chain's declaration.
        on_breach: ``fail`` fails the task, without retries; ``warn`` only logs the breaches.
        history: seconds for which the recorded states are kept; None means the chain's declaration.
    """

    def __init__(
        self,
        *,
        chain: str | PathLike[str],
        thresholds: ThresholdsDeclaration | Mapping[str, Any] | None = None,
        on_breach: Literal["fail", "warn"] = "fail",
        history: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(chain=chain, **kwargs)
        if on_breach not in ("fail", "warn"):
            raise ValueError(f"on_breach is fail or warn, not {on_breach!r}")
        self.thresholds = read_thresholds(thresholds) if isinstance(thresholds, Mapping) else thresholds
        self.on_breach = on_breach
        self.history = history

    def execute(self, context: Any) -> dict[str, Any]:
        """Check the chain, and return the result.

        Raises:
            AirflowFailException: a threshold is exceeded, or the chain or the connection is invalid.
            AirflowException: the store was unavailable.
        """
        with self.guarded(_CARRY_ON):
            folder = self.folder()
            declared = folder.declared.scheduling.monitor
            with self.hook().get_conn() as db:
                now = status(db, folder.declared)
                alive = demand(db, folder.declared)
                before = _before(db)
                record(db, now, declared.history if self.history is None else self.history)
                held = locks(db, _LOCKS) if now.locks else []
            sentences = breaches(now, before, held, self.thresholds or declared.thresholds)
        seen = {
            "breaches": sentences,
            "backlog": now.backlog,
            "due": alive.due,
            "quarantine": now.failed,
            "locks": now.locks,
            "memory": now.store.memory,
            "workers": alive.workers,
            "drains": alive.drains,
        }
        # Pushed before the task can fail, because the next task reads the XCom also after a failure.
        context["ti"].xcom_push(key=NEEDS_DRAIN, value=bool(alive.unattended and not alive.drains))
        self.log.info(
            "backlog %d cells, %d of them due; %d in quarantine, %d locks, %d workers, %d drains",
            *(seen[name] for name in ("backlog", "due", "quarantine", "locks", "workers", "drains")),
        )
        for sentence in sentences:
            self.log.warning("%s", sentence)
        if sentences and self.on_breach == "fail":
            raise AirflowFailException("\n".join(sentences))
        return seen


class StartDrainOperator(TriggerDagRunOperator):
    """Start a chain's observers if the monitor's XCom `NEEDS_DRAIN` is true; otherwise skip.

    Args:
        look: the id of the `MonitorOperator`'s task.
        kwargs: see TriggerDagRunOperator; ``trigger_dag_id`` is the DAG of the observers.
    """

    template_fields: Sequence[str] = (*TriggerDagRunOperator.template_fields, "look")

    def __init__(self, *, look: str, **kwargs: Any) -> None:
        super().__init__(fail_when_dag_is_paused=True, **kwargs)
        self.look = look

    def execute(self, context: Any) -> None:
        """Start a run, unless one is queued or running.

        Raises:
            AirflowSkipException: no run is needed, or the DAG is paused.
        """
        ti = context["ti"]
        if not ti.xcom_pull(task_ids=self.look, key=NEEDS_DRAIN):
            raise AirflowSkipException("no cell is due, or a worker or a drain is alive")
        if ti.get_dr_count(self.trigger_dag_id, states=["queued", "running"]):
            raise AirflowSkipException(f"a run of {self.trigger_dag_id} is queued or running")
        try:
            super().execute(context)
        except DagIsPaused:
            raise AirflowSkipException(
                f"cells are due, but {self.trigger_dag_id} is paused: unpause it, or start workers"
            ) from None


def read_thresholds(given: Mapping[str, Any]) -> ThresholdsDeclaration:
    """Read thresholds in the form of a declaration. Raises ConfigurationError for an invalid one."""
    problems = Problems()
    found = validate(ThresholdsDeclaration, YamlFile.of_arguments("thresholds", dict(given)), problems)
    problems.raise_if_any()
    assert found is not None, "raise_if_any has raised for an invalid declaration"
    return found


def _before(db: Database) -> dict[str, Runs]:
    """Return the runs of each observer at the previous check."""
    last = samples(db, limit=2)
    return {name: Runs(one.ran, one.failures) for name, one in last[-1].observers.items()} if last else {}
