"""``<chain>_maintain``: resolve locks, collect garbage and maintain bases, each in several parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from percolator_airflow.hook import PercolatorHook, plain_failures
from percolator_airflow.operators.maintenance import (
    CollectGarbageOperator,
    MaintainBasesOperator,
    ResolveLocksOperator,
)
from percolator_core.layout.keys import tablet_number

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan
    from percolator_core.database import Database


def maintain_dag(plan: Plan) -> DAG:
    """Return the DAG that maintains a chain's tables. Its tasks may run in any order, and may be repeated."""
    block, place = plan.settings.maintain, plan.place()
    conn_id, namespace, name = place["conn_id"], place["namespace"], plan.chain.name
    parts = block.parts
    schedule = plan.timetable(block.schedule)
    with plan.dag("maintain", block, f"Maintenance of {plan.chain.name}", schedule=schedule) as dag:

        @task(doc="List the tablets, cut into parts.")
        def tablets() -> list[list[list[str | int]]]:
            hook = PercolatorHook(conn_id, namespace, default_namespace=name)
            with plain_failures(), hook.get_conn() as db:
                return cut(tablets_of(db), parts)

        found = tablets()
        # A table may be dropped while the parts run.
        shared = {"skip_missing": True, **place}
        locks = ResolveLocksOperator.partial(
            task_id="resolve_locks", older_than=block.older_than, **shared
        ).expand(tablets=found)
        garbage = CollectGarbageOperator.partial(task_id="collect_garbage", keep=block.keep, **shared).expand(
            tablets=found
        )
        bases = MaintainBasesOperator.partial(
            task_id="maintain_bases", rate=block.base_rate, share=block.base_share, **shared
        ).expand(tablets=found)
        locks >> garbage >> bases
    return dag


def tablets_of(db: Database) -> list[list[str | int]]:
    """Return every tablet of a namespace as table and number."""
    return [
        [definition.name, tablet_number(tag)]
        for definition in db.tables()
        for tag in db.catalog.table(definition.name).tags
    ]


def cut(tablets: list[list[str | int]], parts: int) -> list[list[list[str | int]]]:
    """Cut the tablets into at most ``parts`` parts of about the same size, none of them empty."""
    # Each part takes every n-th tablet, so that the tablets of a large table are spread over all parts.
    return [part for start in range(parts) if (part := tablets[start::parts])]
