"""``<chain>_monitor``: compare the chain with thresholds, and start a drain if one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk import DAG

from percolator_airflow.operators.monitor import MonitorOperator, StartDrainOperator

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan

LOOK: Final = "look"


def monitor_dag(plan: Plan) -> DAG:
    """Return the DAG that monitors a chain."""
    block = plan.settings.monitor
    schedule = plan.timetable(block.schedule)
    with plan.dag("monitor", block, f"Monitor of {plan.chain.name}", schedule=schedule) as dag:
        look = MonitorOperator(
            task_id=LOOK,
            thresholds=block.thresholds,
            on_breach=block.on_breach,
            history=block.history,
            **plan.place(),
        )
        if block.drain and plan.settings.observe.enabled:
            start = StartDrainOperator(
                task_id="start_drain", look=LOOK, trigger_dag_id=plan.ids["observe"], retries=0
            )
            # A teardown runs even if the monitor failed, and does not change the state of the run.
            look >> start.as_teardown()
    return dag
