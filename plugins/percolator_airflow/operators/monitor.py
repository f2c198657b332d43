"""Looking after a chain: thresholds, a history, and a drain where nobody is at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.providers.standard.operators.trigger_dagrun import DagIsPaused, TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from percolator_airflow.operators.base import StoreOperator
from percolator_airflow.thresholds import Runs, breaches
from percolator_core.admin.demand import demand
from percolator_core.admin.samples import record, samples
from percolator_core.admin.status import locks, status
from percolator_core.observers.explain import validate
from percolator_core.observers.scheduling import ThresholdsDeclaration
from percolator_core.observers.yaml_file import Problems, YamlFile

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database

_CARRY_ON: Final = "the next look sees it all"
_LOCKS: Final = 1_000
"""That are looked at; the oldest of them are told."""

NEEDS_DRAIN: Final = "needs_drain"
"""The XCom that says whether cells are due and nobody is at them."""


class MonitorOperator(StoreOperator):
    """Compares how a chain is with thresholds, and keeps a history of it for the plots.

    It reads counts that the store keeps anyway. The result has the ``breaches``, one sentence each, and what
    was seen: ``backlog``, ``due``, ``quarantine``, ``locks``, ``memory``, ``workers`` and ``drains``. The
    XCom ``needs_drain`` says whether cells are due that no continuous worker takes, and no drain is alive.

    Args:
        chain, project, conn_id, namespace: as of `StoreOperator`.
        thresholds: as in the chain's ``airflow: monitor: thresholds:``; what is there when None.
        on_breach: ``fail`` fails the task, without retries; ``warn`` writes the sentences to the log alone.
        history: seconds for which looks are kept; None is as the chain declares it.
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
        """What was seen.

        Raises:
            AirflowFailException: something is beyond its threshold; or the chain or the connection cannot be.
            AirflowException: the store was away.
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
        # Before it fails: the task after it goes by it all the same.
        context["ti"].xcom_push(key=NEEDS_DRAIN, value=bool(alive.unattended and not alive.drains))
        self.log.info(
            "a backlog of %d cells, %d of them due; %d in quarantine, %d locks, %d workers, %d drains",
            *(seen[name] for name in ("backlog", "due", "quarantine", "locks", "workers", "drains")),
        )
        for sentence in sentences:
            self.log.warning("%s", sentence)
        if sentences and self.on_breach == "fail":
            raise AirflowFailException("\n".join(sentences))
        return seen


class StartDrainOperator(TriggerDagRunOperator):
    """Starts a chain's observers when the look before it says so; is skipped otherwise.

    Args:
        look: the id of the `MonitorOperator`'s task.
        kwargs: as of TriggerDagRunOperator; ``trigger_dag_id`` is the DAG of the observers.
    """

    template_fields: Sequence[str] = (*TriggerDagRunOperator.template_fields, "look")

    def __init__(self, *, look: str, **kwargs: Any) -> None:
        super().__init__(fail_when_dag_is_paused=True, **kwargs)
        self.look = look

    def execute(self, context: Any) -> None:
        """Starts a run, unless there is one that waits or goes on.

        Raises:
            AirflowSkipException: nothing is to be started.
        """
        ti = context["ti"]
        if not ti.xcom_pull(task_ids=self.look, key=NEEDS_DRAIN):
            raise AirflowSkipException("nothing is due, or somebody is at it")
        if ti.get_dr_count(self.trigger_dag_id, states=["queued", "running"]):
            raise AirflowSkipException(f"a run of {self.trigger_dag_id} is there already")
        try:
            super().execute(context)
        except DagIsPaused:
            raise AirflowSkipException(
                f"cells wait and {self.trigger_dag_id} is paused: unpause it, or start workers"
            ) from None


def read_thresholds(given: Mapping[str, Any]) -> ThresholdsDeclaration:
    """Thresholds as a declaration writes them; raises ConfigurationError for what cannot be."""
    problems = Problems()
    found = validate(ThresholdsDeclaration, YamlFile.of_arguments("thresholds", dict(given)), problems)
    problems.raise_if_any()
    assert found is not None, "what could not be read is a problem, raised above"
    return found


def _before(db: Database) -> dict[str, Runs]:
    """The runs of each observer at the look before this one."""
    last = samples(db, limit=2)
    return {name: Runs(one.ran, one.failures) for name, one in last[-1].observers.items()} if last else {}
