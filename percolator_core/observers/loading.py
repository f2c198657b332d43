"""Read a chain's folder and check its declarations against each other.

All checks run before an error is raised, so that one run shows all problems. A problem that follows from an
earlier problem is left out: if the tables are not known, no column is reported as unknown. Typed tables are
known only if the project's code may run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from percolator_core.errors import ConfigurationError, CyclicChain, abbreviated
from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.declaration import CHAIN_FILE, ChainDeclaration, ObserverDeclaration
from percolator_core.observers.declared_views import views_of_chain, views_of_objects
from percolator_core.observers.explain import validate
from percolator_core.observers.graph import build_graph, undeclared_cycles
from percolator_core.observers.imports import (
    Models,
    ObserverFunction,
    import_function,
    import_models,
    not_imported,
)
from percolator_core.observers.observer import Observer
from percolator_core.observers.parts import Known, problems_of
from percolator_core.observers.python_observers import Read, of_functions, of_modules
from percolator_core.observers.scheduling import unknown_names
from percolator_core.observers.yaml_file import Problems, YamlFile, did_you_mean, one_line, quoted, read_yaml
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from percolator_core.observers.declared_views import DeclaredViews
    from percolator_core.observers.graph import Graph
    from percolator_core.observers.observer import Column
    from percolator_core.tables.model import Table
    from percolator_core.views.plan import ViewPlan


class Loaded(NamedTuple):
    """The declaration of a chain, its tables, its observers, sorted by name, and their graph."""

    chain: ChainDeclaration
    tables: tuple[TableDefinition, ...]
    models: Models
    observers: dict[str, Observer]
    graph: Graph
    views: Mapping[str, ViewPlan]
    view_digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Tables:
    """The known tables; ``complete`` is false if models were not imported."""

    known: dict[str, TableDefinition] = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    complete: bool = False
    views: Mapping[str, ViewPlan] = field(default_factory=dict)
    observers: Sequence[Observer] = ()

    def with_views(self, views: DeclaredViews, problems: Problems) -> _Tables:
        """Return the tables with those of the chain's views."""
        # The parser of SQL takes long to import, and most chains have no views.
        from percolator_core.observers.view_observers import observers_of, plans_of, tables_of

        plans = plans_of(views, self.known, problems)
        models = Models({**self.models, **{name: views.model(plan) for name, plan in plans.items()}})
        known = {**self.known, **tables_of(plans.values())}
        observers = [one for plan in plans.values() for one in observers_of(plan, views.path(plan.name))]
        return _Tables(known, models, self.complete, plans, observers)


class _Declared(NamedTuple):
    path: Path
    file: YamlFile
    observer: ObserverDeclaration
    function: ObserverFunction


def load_declarations(folder: Path, import_functions: bool) -> Loaded:
    """Read and check the chain in the folder. Raises as `Chain.load`."""
    problems = Problems()
    files = _observer_files(folder, problems)
    chain, chain_file, tables = _read_chain(folder, import_functions, problems)
    read = [Read(path, file) for path in files if (file := read_yaml(path, problems)) is not None]
    if chain is not None and chain_file is not None:
        read += of_modules(chain.observers, chain_file, folder, import_functions, problems)
    declared = _validated(read, import_functions, problems)
    before = len(problems.lines)
    views = views_of_chain(folder, chain, chain_file, import_functions, problems)
    if views and tables.complete and len(problems.lines) == before:
        tables = tables.with_views(views, problems)
    if not files and not views and not (chain and (chain.observers or chain.views)):
        example = folder / "parse.yaml"
        problems.add(
            f"{folder}: has no observers; add one file per observer beside {CHAIN_FILE}, such as {example}"
        )
    return _loaded(chain, chain_file, tables, declared, problems, views.digests)


def declare(
    name: str,
    observers: Iterable[object],
    models: Iterable[type[Table]],
    tables: Mapping[str, Mapping[str, Any]],
    views: Iterable[object],
    *,
    trace: bool,
) -> Loaded:
    """Check a chain of functions, without a folder. Raises as `Chain.of`."""
    problems = Problems()
    given = {definition_of(one).name: one for one in models}
    schemas = sorted({one.__module__ for one in given.values()})
    data = {"version": 1, "chain": name, "schemas": schemas, "tables": dict(tables), "trace": trace}
    file = YamlFile.of_arguments("Chain.of", {key: value for key, value in data.items() if value})
    chain = validate(ChainDeclaration, file, problems)
    known = _Tables()
    if chain is not None:
        typed = {table: definition_of(one) for table, one in given.items()}
        known = _Tables(_raw_tables(chain) | typed, given, complete=True)
    declared = _validated(of_functions(observers, problems), True, problems)
    given_views = views_of_objects(views, problems)
    if not declared and not given_views and not problems.lines:
        problems.add("Chain.of: observers: is empty; give functions that '@observer' declares, or views")
    if given_views and known.complete and not problems.lines:
        known = known.with_views(given_views, problems)
    return _loaded(chain, file, known, declared, problems, given_views.digests)


def _loaded(  # noqa: PLR0917
    chain: ChainDeclaration | None,
    chain_file: YamlFile | None,
    tables: _Tables,
    declared: list[_Declared],
    problems: Problems,
    view_digests: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Check declarations against each other. Raises ConfigurationError with all problems."""
    _refuse_shared_names(declared, problems)
    for found in declared:
        _check_columns(found, tables, problems)
    if chain is not None and chain_file is not None:
        names = {found.observer.observer for found in declared}
        known = tables.known if tables.complete else None
        for place, what in unknown_names(chain.airflow, known, names or None):
            problems.add(chain_file.problem(("airflow", *place), what))
    if tables.complete and not problems.lines:
        _check_parts(declared, tables, problems)
    definitions = tuple(tables.known[name] for name in sorted(tables.known))
    observers = {
        found.observer.observer: Observer.from_declaration(found.observer, found.path, found.function)
        for found in sorted(declared, key=lambda found: found.observer.observer)
    }
    observers.update({one.name: one for one in tables.observers})
    graph = build_graph("" if chain is None else chain.chain, definitions, observers)
    _refuse_cycles(graph, {found.observer.observer: found.file for found in declared}, problems)
    problems.raise_if_any()
    assert chain is not None, "raise_if_any has raised for a chain that could not be read"
    return Loaded(chain, definitions, tables.models, observers, graph, tables.views, view_digests)


def _observer_files(folder: Path, problems: Problems) -> list[Path]:
    if not folder.exists():
        raise ConfigurationError(
            one_line(f"{folder}: there is no such folder; name one that holds {CHAIN_FILE}")
        )
    if not folder.is_dir():
        raise ConfigurationError(
            one_line(f"{folder}: is a file; name the folder that holds {CHAIN_FILE}, such as {folder.parent}")
        )
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".yaml", ".yml") or path.name.startswith(".") or path.is_dir():
            continue
        if path.stem == "chain" and path.name != CHAIN_FILE:
            there = (folder / CHAIN_FILE).exists()
            problems.add(
                f"{path}: {'stands beside' if there else 'must be called'} {CHAIN_FILE}; "
                f"{'remove one of the two' if there else 'rename it'}"
            )
        elif path.name != CHAIN_FILE:
            found.append(path)
    return found


def _read_chain(
    folder: Path, import_functions: bool, problems: Problems
) -> tuple[ChainDeclaration | None, YamlFile | None, _Tables]:
    path = folder / CHAIN_FILE
    if not path.exists():
        if not (folder / "chain.yml").exists():
            problems.add(
                f"{path}: is missing; it names the chain and its tables: "
                "'version: 1', 'chain: webindex', 'tables: {documents: {tablets: 16}}'"
            )
        return None, None, _Tables()
    file = read_yaml(path, problems)
    chain = None if file is None else validate(ChainDeclaration, file, problems)
    if file is None or chain is None:
        return None, None, _Tables()
    raw = _raw_tables(chain)
    based = {name for name, table in chain.tables.items() if table.is_base_only}
    if import_functions:
        return chain, file, _with_models(chain, file, raw, based, problems)
    if chain.schemas:
        # A table with only a base may be a typed one.
        raw = {name: table for name, table in raw.items() if name not in based}
    return chain, file, _Tables(raw, complete=not chain.schemas)


def _raw_tables(chain: ChainDeclaration) -> dict[str, TableDefinition]:
    return {
        name: TableDefinition(name, table.tablets, tuple(sorted(table.notify_only)))
        for name, table in chain.tables.items()
    }


def _with_models(
    chain: ChainDeclaration,
    file: YamlFile,
    raw: Mapping[str, TableDefinition],
    based: set[str],
    problems: Problems,
) -> _Tables:
    """Return the raw tables and the tables of the chain's models; one of ``based`` may have a model."""
    known, models, complete = dict(raw), Models(), True
    for position, module in enumerate(chain.schemas):
        try:
            imported = import_models(module)
        except ValueError as error:
            problems.add(file.problem(("schemas", position), str(error)), getattr(error, "cause", None))
            complete = False
            continue
        for name, model in imported.items():
            if name in known and models.get(name) is not model and not (name in based and name not in models):
                other = models.get(name)
                by = "under 'tables'" if other is None else f"by {other.__name__} of {other.__module__!r}"
                what = (
                    f"table {quoted(name)} of {quoted(module)} is declared {by}, too; remove one of the two"
                )
                problems.add(file.problem(("schemas", position), what))
            known[name], models[name] = definition_of(model), model
    return _Tables(known, models, complete)


def _validated(read: Iterable[Read], import_functions: bool, problems: Problems) -> list[_Declared]:
    found = []
    for path, file, function in read:
        observer = validate(ObserverDeclaration, file, problems)
        if observer is not None:
            known = function or _function(observer.function, file, import_functions, problems)
            found.append(_Declared(path, file, observer, known))
    return found


def _refuse_shared_names(declared: list[_Declared], problems: Problems) -> None:
    first: dict[str, _Declared] = {}
    for found in declared:
        name = found.observer.observer
        earlier = first.setdefault(name, found)
        if earlier is not found:
            problems.add(
                found.file.problem(
                    ("observer",),
                    f"the name {quoted(name)} is taken by {earlier.path}; give one of them another name",
                )
            )


def _check_columns(found: _Declared, tables: _Tables, problems: Problems) -> None:
    for field_ in ("observe", "reads", "writes"):
        for position, (table, column) in enumerate(getattr(found.observer, field_)):
            wrong = _column_problem(found.observer.mode, field_, table, column, tables)
            if wrong:
                problems.add(found.file.problem((field_, position), wrong))


def _column_problem(mode: str, field_: str, table: str, column: str, tables: _Tables) -> str | None:
    definition = tables.known.get(table)
    if definition is None:
        if not tables.complete:
            return None
        place, mend = CHAIN_FILE, f"; declare it under 'tables' in {CHAIN_FILE}"
        if tables.models:
            # A table that the user has renamed in the models is not to be declared again, as a raw one.
            place, mend = f"{CHAIN_FILE} or its schemas", f"; the chain has {', '.join(sorted(tables.known))}"
        return f"table {quoted(table)} is not declared in {place}{did_you_mean(table, tables.known) or mend}"
    if field_ == "writes" and definition.view is not None:
        return f"{quoted(table)} belongs to the view {definition.view.view}: write the tables that it reads"
    if definition.is_typed and column != EVERY_COLUMN:
        wrong = _typed_problem(field_, definition, column, tables)
        if wrong:
            return wrong
    return _mode_problem(mode, definition, column, tables) if field_ == "observe" else None


def _typed_problem(field_: str, definition: TableDefinition, column: str, tables: _Tables) -> str | None:
    """Return the problem of a reference to a typed table: an unknown column, or a column of the key."""
    table = definition.name
    names = [*definition.by_name, *definition.notify_only]
    if column not in names:
        mend = did_you_mean(column, names) or f"; it has {', '.join(names)}"
        return f"{tables.models[table].__name__}, table {quoted(table)}, has no column {quoted(column)}{mend}"
    if column in definition.key and field_ != "reads":
        done, instead = {
            "observe": ("changes", "observe one of its other columns"),
            "writes": ("is written", "leave it out: inserting a row writes its other columns"),
        }[field_]
        others = ", ".join(one.name for one in definition.value_columns)
        hint = f", such as {others}" if field_ == "observe" and others else ""
        return f"{table}.{column} is part of the key, which never {done}; {instead}{hint}"
    return None


def _mode_problem(mode: str, definition: TableDefinition, column: str, tables: _Tables) -> str | None:
    table, notify_only = definition.name, definition.notify_only
    named = f"{table}.{abbreviated(column)}"
    if mode == "weak" and column not in notify_only:
        mend = did_you_mean(f"{table}.{column}", [f"{table}.{name}" for name in notify_only])
        if not mend:
            where = tables.models[table].__name__ if definition.is_typed else CHAIN_FILE
            place = f"notify_only of {quoted(table)} in {where}"
            # A column with data cannot be notify-only.
            one = "another one" if definition.is_typed else quoted(column)
            mend = f"; add {one} to {place}, or write mode: strong"
        return f"a weak observer watches notify-only columns, and {named} is an ordinary one{mend}"
    if mode == "strong" and column in notify_only:
        return f"{named} is notify-only and wakes only weak observers; write mode: weak"
    return None


def _function(name: str, file: YamlFile, import_functions: bool, problems: Problems) -> ObserverFunction:
    if import_functions:
        try:
            return import_function(name)
        except ValueError as error:
            problems.add(file.problem(("function",), str(error)), getattr(error, "cause", None))
    return not_imported(name)


def _check_parts(declared: list[_Declared], tables: _Tables, problems: Problems) -> None:
    """Report what the ready-made parts need that the functions use, and what is not there."""
    observed: dict[Column, list[str]] = {}
    for found in declared:
        for column in found.observer.observe:
            observed.setdefault(column, []).append(found.observer.observer)
    known = Known(tables.known, tables.models, observed)
    for found in declared:
        for place, what in problems_of(found.observer, found.function, known):
            problems.add(found.file.problem(place, what))


def _refuse_cycles(graph: Graph, files: Mapping[str, YamlFile], problems: Problems) -> None:
    """Raise CyclicChain if nothing else is wrong; otherwise add each cycle to the problems."""
    cycles = undeclared_cycles(graph)
    cyclic = Problems()
    for cycle in cycles:
        cyclic.add(
            files[cycle[0]].problem(
                ("writes",),
                f"the chain is cyclic: {' → '.join(cycle)}; break it, or write feedback: true in the "
                "observer that closes the loop; it must write nothing when nothing changed",
            )
        )
    if cycles and not problems.lines:
        raise CyclicChain("\n".join(cyclic.lines), cycles[0])
    problems.lines.extend(cyclic.lines)
