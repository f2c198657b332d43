"""``<chain>_load``: the declared sources, or what a run by hand names, each loaded by a task of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, AssetAlias, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from percolator_airflow.assets import table_asset
from percolator_airflow.operators.load import LoadOperator
from percolator_core.observers.scheduling import FORMATS

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan
    from percolator_core.observers.scheduling import LoadDeclaration

OTHER: Final = "load_other"
"""The task for tables that no declared source is for."""

_OF_A_SOURCE: Final = ("format", "key", "columns", "base_url", "delimiter", "encoding", "delete_missing")
_COUNTS: Final = ("read", "new", "changed", "unchanged", "repeated", "deleted", "bad")

_LONGEST_ID: Final = 200
"""Characters of a task's id; Airflow takes 250, and those of the inputs are longer."""

Input = dict[str, Any]
"""The arguments of one `LoadOperator`."""


class GivenLoadOperator(LoadOperator):
    """A load of what a run's form says, word by word.

    Nothing of it is a template: whoever may start a run could else have any connection of Airflow's read.
    """

    def render_template(self, content: Any, *_: Any, **__: Any) -> Any:
        """The content as it is."""
        return content


def load_dag(plan: Plan) -> DAG:
    """The DAG that loads a chain's sources: for each of their tables a task, mapped over its sources."""
    block = plan.settings.load
    declared = [_input(source.model_dump()) for source in block.sources]
    tables = list(dict.fromkeys(source.table for source in block.sources))
    known = sorted({*tables, *(table.name for table in plan.chain.tables)})
    tasks = task_ids(tables)
    conn_id, namespace = plan.settings.connection, plan.settings.namespace or plan.chain.name
    with plan.dag(
        "load",
        block,
        f"Loads for {plan.chain.name}",
        schedule=plan.timetable(block.schedule),
        params=form(block, tables, known),
    ) as dag:

        @task(doc="What is loaded into the table: the declared sources, or those of the form.")
        def inputs(table: str | None) -> list[Input]:
            return those_of(chosen(declared, known, get_current_context()["params"]), table, tables)

        shared = {"master": block.master, "width": block.width, **plan.place()}
        loads = []
        for table, task_id in tasks.items():
            loads.append(
                GivenLoadOperator.partial(
                    task_id=task_id,
                    outlets=[table_asset(table, conn_id, namespace)],
                    map_index_template=_SHOWN,
                    **shared,
                ).expand_kwargs(inputs.override(task_id=f"inputs_of_{task_id[5:]}")(table))
            )

        alias = AssetAlias(f"{plan.chain.name}_loaded")

        def note(context: Any, result: Mapping[str, Any]) -> None:
            context["outlet_events"][alias].add(table_asset(result["table"], conn_id, namespace))

        loads.append(
            GivenLoadOperator.partial(
                task_id=OTHER, outlets=[alias], post_execute=note, map_index_template=_SHOWN, **shared
            ).expand_kwargs(inputs.override(task_id="inputs_of_other")(None))
        )

        @task(trigger_rule="none_failed", doc="What was loaded in all, and what was put aside.")
        def report(reports: Sequence[Any]) -> dict[str, Any]:
            return told([one for some in reports for one in some or ()])

        report([load.output for load in loads])
    return dag


def those_of(found: Sequence[Input], table: str | None, tables: Sequence[str]) -> list[Input]:
    """Those for a table; with None those for tables that have no task of their own."""
    return [one for one in found if one["table"] == table or (table is None and one["table"] not in tables)]


def task_ids(tables: Sequence[str]) -> dict[str, str]:
    """The id of each table's task; where names make the same id, all but the first have a number."""
    found: dict[str, str] = {}
    taken = {OTHER}
    for table in tables:
        plain = f"load_{re.sub(r'[^A-Za-z0-9_.-]', '_', table)}"[:_LONGEST_ID]
        names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
        found[table] = next(name for name in names if name not in taken)
        taken.add(found[table])
    return found


_SHOWN: Final = "{{ task.sources | join(', ') if task.sources is not string else task.sources }}"


def form(block: LoadDeclaration, tables: Sequence[str], known: Sequence[str]) -> dict[str, Param]:
    """The parameters of a run, as Airflow's form shows them; with none given, what is declared is loaded."""
    only = tables[0] if len(tables) == 1 else known[0] if len(known) == 1 else None
    return {
        "paths": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Files, folders or patterns",
            description="One a line. Leave it empty to load what the chain declares.",
        ),
        "table": _text("Table", "The table to load into.", only, examples=list(known)),
        "format": _text("Format", "When left out, the format of the suffixes.", enum=[None, *FORMATS]),
        "key": _text("Key", "The field with the row key: jsonl, csv and parquet into raw tables."),
        "columns": _text("Columns", "FIELD[=COLUMN],…: load these fields only, under these names."),
        "base_url": _text("Base URL", "The beginning of the row keys of html."),
        "delimiter": _text("Delimiter", "Of csv."),
        "encoding": _text("Encoding", "Of csv."),
        "null_text": _text("Null", "The csv field that stands for no cell.", ""),
        "delete_missing": _text(
            "Delete missing rows", "Rows with this prefix that the source no longer has are deleted."
        ),
        "aside": _text("Put aside", "The folder for malformed records.", block.aside),
        "max_bad": Param(
            block.max_bad,
            type=["null", "integer"],
            minimum=0,
            title="Most malformed records",
            description="With more of them the load fails; any number when empty.",
        ),
    }


def _text(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    return Param(default, type=["null", "string"], title=title, description=description, **schema)


def chosen(declared: Sequence[Input], known: Sequence[str], params: Mapping[str, Any]) -> list[Input]:
    """What a run loads, by its parameters.

    Raises:
        AirflowFailException: the parameters name files and no table.
    """
    run = {"aside": params.get("aside") or None, "max_bad": params.get("max_bad")}
    paths = [path for path in params.get("paths") or () if path.strip()]
    if not paths:
        return [{**one, **run} for one in declared]
    table = params.get("table")
    if not table:
        raise AirflowFailException(
            f"the run names files and no table: add the parameter table, one of {', '.join(known)}"
        )
    source = {name: params.get(name) or None for name in _OF_A_SOURCE}
    null_text = params.get("null_text") or ""
    return [{"table": table, "sources": paths, **source, "null_text": null_text, **run}]


def told(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all loads of a run by table, and the files of what was put aside."""
    tables: dict[str, dict[str, int]] = {}
    for one in reports:
        sums = tables.setdefault(one["table"], dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            sums[name] += one[name]
    return {"tables": tables, "aside": [one["aside"] for one in reports if one["aside"]]}


def _input(source: Mapping[str, Any]) -> Input:
    """The operator's arguments of a declared source."""
    rest = {name: value for name, value in source.items() if name != "paths"}
    return {**rest, "sources": list(source["paths"])}
