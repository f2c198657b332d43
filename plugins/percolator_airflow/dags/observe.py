"""``<chain>_observe``: run the observers, generation by generation, until the chain is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, AssetOrTimeSchedule, TaskGroup

from percolator_airflow.assets import dirty_asset
from percolator_airflow.names import LAST_TASK
from percolator_airflow.operators.drain import DrainOperator

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan


def observe_dag(plan: Plan) -> DAG:
    """Return the DAG that runs a chain's observers.

    A generation starts when the previous one has ended. So most cells get all their changes before their
    observer runs, and need only one run. The last task does the rest: cells that were written in the
    meantime, and loops of the chain.
    """
    block = plan.settings.observe
    drain: dict[str, Any] = {
        **plan.place(),
        "engine": block.engine,
        "budget": block.budget,
        "width": block.width,
        "threads": block.threads,
        "tasks": block.tasks,
        "master": block.master,
    }
    with plan.dag("observe", block, f"Observers of {plan.chain.name}", schedule=_schedule(plan)) as dag:
        before: TaskGroup | None = None
        for number, generation in enumerate(plan.chain.order(), 1):
            with TaskGroup(f"generation_{number}") as group:
                for observer in generation:
                    DrainOperator(
                        task_id=observer.name, observers=[observer.name], doc=observer.description, **drain
                    )
            if before is not None:
                before >> group
            before = group
        last = DrainOperator(task_id=LAST_TASK, doc="Run all observers until the chain is idle.", **drain)
        if before is not None:
            before >> last
    return dag


def _schedule(plan: Plan) -> Any:
    block = plan.settings.observe
    timetable = plan.timetable(block.schedule)
    if not block.watch:
        return timetable
    place = {name: value for name, value in plan.place().items() if name != "project"}
    assets = [dirty_asset(**place, remind=block.remind)]
    return assets if timetable is None else AssetOrTimeSchedule(assets=assets, timetable=timetable)
