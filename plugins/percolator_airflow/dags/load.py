"""``<chain>_load``: load the declared sources, or those that a run's form names. Each has its own task."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, AssetAlias, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from percolator_airflow.operators.load import LoadOperator
from percolator_core.observers.scheduling import FORMATS

if TYPE_CHECKING:
    from percolator_airflow.dags.plan import Plan
    from percolator_core.observers.scheduling import LoadDeclaration

OTHER: Final = "load_other"
"""The task for tables without a declared source."""

_OF_A_SOURCE: Final = ("format", "key", "columns", "base_url", "delimiter", "encoding", "delete_missing")
_COUNTS: Final = ("read", "new", "changed", "unchanged", "repeated", "deleted", "bad")

_LONGEST_ID: Final = 200
"""Characters of a task's id: Airflow allows 250, and the ids of the tasks ``inputs_of_…`` are longer."""

Input = dict[str, Any]
"""The arguments of one `LoadOperator`."""


class GivenLoadOperator(LoadOperator):
    """Load the sources of a run's form, without templates.

    With templates, a user who may start a run could read every connection of Airflow.
    """

    def render_template(self, content: Any, *_: Any, **__: Any) -> Any:
        """Return the content unchanged."""
        return content


def load_dag(plan: Plan) -> DAG:
    """Return the DAG that loads a chain's sources: a task for each table, mapped over the table's sources."""
    block = plan.settings.load
    declared = [_input(source.model_dump()) for source in block.sources]
    tables = list(dict.fromkeys(source.table for source in block.sources))
    known = sorted({*tables, *(table.name for table in plan.chain.tables)})
    tasks = task_ids(tables)
    with plan.dag(
        "load",
        block,
        f"Loads for {plan.chain.name}",
        schedule=plan.timetable(block.schedule),
        params=form(block, tables, known),
    ) as dag:

        @task(doc="Return the sources to load into the table: the declared ones, or those of the form.")
        def inputs(table: str | None) -> list[Input]:
            return those_of(chosen(declared, known, get_current_context()["params"]), table, tables)

        shared = {"engine": block.engine, "master": block.master, "width": block.width, **plan.place()}
        loads = []
        for table, task_id in tasks.items():
            loads.append(
                GivenLoadOperator.partial(
                    task_id=task_id,
                    outlets=[plan.asset(table)],
                    map_index_template=_SHOWN,
                    **shared,
                ).expand_kwargs(inputs.override(task_id=f"inputs_of_{task_id[5:]}")(table))
            )

        alias = AssetAlias(f"{plan.chain.name}_loaded")

        def note(context: Any, result: Mapping[str, Any]) -> None:
            context["outlet_events"][alias].add(plan.asset(result["table"]))

        loads.append(
            GivenLoadOperator.partial(
                task_id=OTHER, outlets=[alias], post_execute=note, map_index_template=_SHOWN, **shared
            ).expand_kwargs(inputs.override(task_id="inputs_of_other")(None))
        )

        @task(trigger_rule="none_failed", doc="Sum up the loads, and list the files of malformed records.")
        def report(reports: Sequence[Any]) -> dict[str, Any]:
            return summed([one for some in reports for one in some or ()])

        report([load.output for load in loads])
    return dag


def those_of(found: Sequence[Input], table: str | None, tables: Sequence[str]) -> list[Input]:
    """Return the inputs for a table. If ``table`` is None, return those of all tables without an own task."""
    return [one for one in found if one["table"] == table or (table is None and one["table"] not in tables)]


def task_ids(tables: Sequence[str]) -> dict[str, str]:
    """Return the id of each table's task; if two tables get the same id, the later one gets a number."""
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
    """Return the parameters of a run for Airflow's form; without files, the declared sources are loaded."""
    only = tables[0] if len(tables) == 1 else known[0] if len(known) == 1 else None
    return {
        "paths": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Files, folders or patterns",
            description="One per line. Empty: load the sources that the chain declares.",
        ),
        "table": _text("Table", "The table to load into.", only, examples=list(known)),
        "format": _text("Format", "Default: the format of the files' suffixes.", enum=[None, *FORMATS]),
        "key": _text("Key", "The field with the row key, for jsonl, csv and parquet into raw tables."),
        "columns": _text("Columns", "FIELD[=COLUMN],…: load these fields only, under these names."),
        "base_url": _text("Base URL", "The beginning of the row keys of html files."),
        "delimiter": _text("Delimiter", "The delimiter of csv files. Empty: found in the header line."),
        "encoding": _text("Encoding", "The encoding of csv files. Empty: UTF-8."),
        "null_text": _text("Null", "A csv field with this text writes no cell.", ""),
        "delete_missing": _text(
            "Delete missing rows", "Rows with this prefix that the source no longer has are deleted."
        ),
        "aside": _text("Put aside", "The folder for malformed records.", block.aside),
        "max_bad": Param(
            block.max_bad,
            type=["null", "integer"],
            minimum=0,
            title="Most malformed records",
            description="A load with more malformed records than this fails. Empty: no limit.",
        ),
    }


def _text(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    return Param(default, type=["null", "string"], title=title, description=description, **schema)


def chosen(declared: Sequence[Input], known: Sequence[str], params: Mapping[str, Any]) -> list[Input]:
    """Return the inputs of a run that has these parameters.

    Raises:
        AirflowFailException: the parameters name files, but no table.
    """
    run = {"aside": params.get("aside") or None, "max_bad": params.get("max_bad")}
    paths = [path for path in params.get("paths") or () if path.strip()]
    if not paths:
        return [{**one, **run} for one in declared]
    table = params.get("table")
    if not table:
        raise AirflowFailException(
            f"the run names files, but no table: set the parameter table to one of {', '.join(known)}"
        )
    source = {name: params.get(name) or None for name in _OF_A_SOURCE}
    null_text = params.get("null_text") or ""
    return [{"table": table, "sources": paths, **source, "null_text": null_text, **run}]


def summed(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of a run, added up for each table, and the files of malformed records."""
    tables: dict[str, dict[str, int]] = {}
    for one in reports:
        sums = tables.setdefault(one["table"], dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            sums[name] += one[name]
    return {"tables": tables, "aside": [one["aside"] for one in reports if one["aside"]]}


def _input(source: Mapping[str, Any]) -> Input:
    """Return the arguments of the operator for a declared source."""
    rest = {name: value for name, value in source.items() if name != "paths"}
    return {**rest, "sources": list(source["paths"])}
