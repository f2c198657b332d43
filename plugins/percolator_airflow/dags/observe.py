"""``<chain>_observe``: run the observers, generation by generation, until the chain is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, AssetAlias, AssetOrTimeSchedule, TaskGroup

from percolator_airflow.assets import dirty_asset
from percolator_airflow.names import LAST_TASK
from percolator_airflow.operators.drain import DrainOperator, is_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Asset

    from percolator_airflow.dags.plan import Plan


_RULE: Final = "none_failed"
"""A task runs although the task of an observer before it was skipped."""


def observe_dag(plan: Plan) -> DAG:
    """Return the DAG that runs a chain's observers.

    A generation starts when the previous one has ended. So most cells get all their changes before their
    observer runs, and need only one run. The last task does the rest: cells that were written in the
    meantime, and loops of the chain.

    The tables that an observer observes or reads are the inlets of its task, and the tables that it writes
    are the outlets. A table gets no event from a task that found no cell at its start, unless the task had
    failed before: a table that has changed gets an event at least once.
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
                        task_id=observer.name,
                        observers=[observer.name],
                        doc=observer.description,
                        inlets=_assets(plan, {*observer.observe, *observer.reads}),
                        outlets=_assets(plan, observer.writes),
                        skip_idle=True,
                        trigger_rule=_RULE,
                        **drain,
                    )
            if before is not None:
                before >> group
            before = group
        alias = AssetAlias(f"{plan.chain.name}_observed")

        def note(context: Any, result: Mapping[str, Any]) -> None:
            observers = plan.chain.observers
            ran = [name for name, counts in result["observers"].items() if counts["ran"]]
            if is_repeated(context):
                ran = list(observers)  # the failed try may have run any of them, and has left no result
            for asset in _assets(plan, (one for name in ran for one in observers[name].writes)):
                context["outlet_events"][alias].add(asset)

        last = DrainOperator(
            task_id=LAST_TASK,
            doc="Run all observers until the chain is idle.",
            outlets=[alias],
            post_execute=note,
            trigger_rule=_RULE,
            **drain,
        )
        if before is not None:
            before >> last
    return dag


def _assets(plan: Plan, columns: Iterable[tuple[str, str]]) -> list[Asset]:
    """Return the assets of the columns' tables, sorted by name."""
    return [plan.asset(table) for table in sorted({table for table, _ in columns})]


def _schedule(plan: Plan) -> Any:
    block = plan.settings.observe
    timetable = plan.timetable(block.schedule)
    if not block.watch:
        return timetable
    place = {name: value for name, value in plan.place().items() if name != "project"}
    assets = [dirty_asset(**place, remind=block.remind)]
    return assets if timetable is None else AssetOrTimeSchedule(assets=assets, timetable=timetable)
