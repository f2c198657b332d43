"""Plan the views of a chain: one file ``views/NAME.sql`` a view, and classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from percolator_core.schema.definitions import TableDefinition
from percolator_core.views.files import view_files
from percolator_core.views.plan import ViewPlan
from percolator_core.views.planner import Parsed, plan_view
from percolator_core.views.problems import Problem, ViewRefused
from percolator_core.views.python_functions import ViewFunction
from percolator_core.views.view import DeclaredView


class Views(NamedTuple):
    """The plans of a chain's views; each comes after the views that it reads. Each problem is one line."""

    plans: tuple[ViewPlan, ...]
    problems: tuple[str, ...]


def plan_views(
    folder: Path | None,
    tables: Mapping[str, TableDefinition],
    functions: Mapping[str, ViewFunction] | None = None,
    classes: Iterable[DeclaredView] = (),
) -> Views:
    """Read and plan the views in ``folder/views``, if there are any, and those of ``classes``.

    ``tables`` has the typed tables of the chain. A problem is ``file:line:column: text``, or that of a class
    ``file:line: class.attribute: text``; a view that reads a view with a problem is left out without a
    problem of its own.
    """
    problems: list[str] = []
    parsed: dict[str, Parsed] = {}
    by_class = {one.name: one for one in classes}
    for path in () if folder is None else view_files(folder):
        try:
            one = Parsed(path.read_bytes().decode("utf-8-sig"), str(path), path.stem)
        except ViewRefused as refused:
            problems += str(refused).splitlines()
            continue
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}; save it as UTF-8")
            continue
        parsed[one.name] = one
    places = {name: f"{one.label}:1:1" for name, one in parsed.items()}
    for name, declared in by_class.items():
        if name in parsed:
            problems.append(f"{declared.place}: {parsed[name].label} is the view {name!r}, too: rename one")
        parsed[name] = declared.parsed()
        places[name] = declared.place
    for name in sorted(parsed.keys() & tables.keys()):
        problems.append(f"{places[name]}: the chain has a table {name!r}, too: rename one of the two")
    return _planned(parsed, dict(tables), functions or {}, by_class, problems)


def _planned(
    parsed: dict[str, Parsed],
    known: dict[str, TableDefinition],
    functions: Mapping[str, ViewFunction],
    by_class: Mapping[str, DeclaredView],
    problems: list[str],
) -> Views:
    plans: list[ViewPlan] = []
    by_name = {name.lower(): name for name in parsed}
    left = dict(parsed)
    failed: set[str] = set()
    while left:
        waiting = {
            name: {by_name[one.lower()] for one in parsed[name].tables if one.lower() in by_name}
            for name in left
        }
        ready = next((name for name in left if not waiting[name] & set(left)), None)
        if ready is None:
            cycle = _cycle(waiting)
            first = left[cycle[0]]
            what = f"the views read each other: {' → '.join(cycle)}; break the circle"
            problems.append(f"{first.label}:{Problem(1, 1, what)}")
            break
        view = left.pop(ready)
        if waiting[ready] & failed:
            failed.add(ready)
            continue
        try:
            plan = plan_view(view, known, functions)
        except ViewRefused as refused:
            of_class = by_class.get(ready)
            problems += str(refused).splitlines() if of_class is None else of_class.problems(refused)
            failed.add(ready)
            continue
        plans.append(plan)
        known[plan.name] = plan.stored
    return Views(tuple(plans), tuple(problems))


def _cycle(waiting: dict[str, set[str]]) -> list[str]:
    """Return the names of views that read each other; the last one repeats the first."""
    path = [min(waiting)]
    while True:
        following = min(waiting[path[-1]] & set(waiting))
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
