"""The views of a chain: the tables that they need, and the observers that keep them up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import EVERY_COLUMN, view_observer
from percolator_core.notifications.queue import ADDED
from percolator_core.observers.observer import Observer
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.model import definition_of
from percolator_core.views.loading import plan_views
from percolator_core.views.python_functions import ViewFunction
from percolator_core.views.runs import GROUPS, ROWS, ViewRuns
from percolator_core.views.sinks import RowSink
from percolator_core.views.stored import groups_table
from percolator_core.views.view import declared_view

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core.observers.declared_views import DeclaredViews
    from percolator_core.observers.observer import Column
    from percolator_core.observers.yaml_file import Problems
    from percolator_core.views.plan import ViewPlan

_FUNCTION: Final = "percolator_core.views.runs:ViewRuns"


def plans_of(
    views: DeclaredViews, tables: Mapping[str, TableDefinition], problems: Problems
) -> dict[str, ViewPlan]:
    """Return the plans of a chain's views, by name.

    ``tables`` has the tables of the chain, without those of views.
    """
    functions: dict[str, ViewFunction] = {}
    before = len(problems.lines)
    for one in views.functions.values():
        if one.function is not None:
            try:
                functions[one.name] = ViewFunction.of(one.name, one.function, one.revision)
            except ConfigurationError as error:
                problems.add(one.file.problem((), str(error)))
    if len(problems.lines) > before:
        return {}
    typed = {name: one for name, one in tables.items() if one.is_typed}
    classes = {name: one.model for name, one in views.classes.items() if one.model is not None}
    declared = [made for model in classes.values() if (made := declared_view(model)) is not None]
    found = plan_views(views.folder, typed, functions, declared)
    for line in found.problems:
        problems.add(line)
    plans = {plan.name: plan for plan in found.plans}
    for plan in plans.values():
        for line in _complaints(plan, tables):
            problems.add(views.problem(plan.name, line))
        if plan.name in classes and definition_of(classes[plan.name]) != plan.definition:
            what = "it reads other models than those of the chain; import the models of 'schemas'"
            problems.add(views.problem(plan.name, what))
    return plans


def _complaints(plan: ViewPlan, tables: Mapping[str, TableDefinition]) -> Iterable[str]:
    for name in sorted({plan.stored.name, groups_table(plan.stored.name)} & set(tables)):
        yield f"the table {name!r} has the name of a table of the view: rename one of the two"
    for table, columns in sorted(plan.indexes):
        if table not in tables:
            view = table.rpartition("__")[0]
            yield f"a join finds rows of the view {view!r} by {columns[0]}, which has no index; join a table"
        elif not {rule.column for rule in tables[table].indexes} & set(columns):
            yield (
                f"a join finds the rows of {table!r} by {' or '.join(columns)}, which has no index: declare "
                f"the column as Indexed in the model, such as {columns[0]}: Indexed[int]"
            )


def tables_of(plans: Iterable[ViewPlan]) -> dict[str, TableDefinition]:
    """Return the definitions of the views' tables, by name; a view's rows are under the name of the view."""
    found: dict[str, TableDefinition] = {}
    for plan in plans:
        found[plan.name] = plan.definition.with_(view=plan.stored.view)
        if not isinstance(plan.sink, RowSink):
            name = groups_table(plan.stored.name)
            found[name] = TableDefinition(name, 1, (ADDED,), view=plan.stored.view)
    return found


def observers_of(plan: ViewPlan, file: Path) -> list[Observer]:
    """Return the observers of a view: one for changed rows, and one for groups if there are any.

    ``file`` is the file that declares the view.
    """
    runs, table = ViewRuns(plan), plan.stored.name
    groups = groups_table(table)
    # Views read the version of another view that their SQL means, and all others the one that is shown.
    rows_written: tuple[Column, ...] = ((plan.name, EVERY_COLUMN), (table, EVERY_COLUMN))
    is_direct = isinstance(plan.sink, RowSink)
    reads = tuple((source, name) for source in plan.sources for name in sorted(plan.reads(source)))
    rows = Observer(
        view_observer(table, ROWS),
        file,
        runs.process,
        _FUNCTION,
        tuple((source, EVERY_COLUMN) for source in plan.sources),
        reads=reads,
        writes=rows_written if is_direct else (*rows_written, (groups, ADDED), (groups, EVERY_COLUMN)),
        view=runs,
        description=f"applies changes of rows to the view {plan.name}",
    )
    if is_direct:
        return [rows]
    fold = Observer(
        view_observer(table, GROUPS),
        file,
        runs.fold,
        _FUNCTION,
        ((groups, ADDED),),
        mode="weak",
        writes=(*rows_written, (groups, ADDED), (groups, EVERY_COLUMN)),
        feedback=True,
        view=runs,
        description=f"applies the queued changes of groups to the view {plan.name}",
    )
    return [rows, fold]
