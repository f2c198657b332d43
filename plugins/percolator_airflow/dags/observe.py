"""``<chain>_observe``: the observers, generation after generation, until the chain is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, AssetOrTimeSchedule, TaskGroup

from percolator_airflow.assets import dirty_asset
from percolator_airflow.names import LAST_TASK
from percolator_airflow.operators.drain import DrainOperator

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan


def observe_dag(plan: Plan) -> DAG:
    """The DAG that runs a chain's observers.

    A generation begins when the one before it has ended: so most cells are run once, after all that wakes
    them. What arrives meanwhile, and what loops of the chain cause, is left to the last task.
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
        last = DrainOperator(
            task_id=LAST_TASK, doc="All observers, in rounds, until nothing is left.", **drain
        )
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
