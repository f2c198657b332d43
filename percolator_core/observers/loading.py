"""Read a chain's folder and check its declarations against each other.

All checks run before an error is raised, so that one run shows all problems. A problem that follows from an
earlier problem is left out: if the tables are not known, no column is reported as unknown. Typed tables are
known only if the project's code may run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from percolator_core.errors import ConfigurationError, CyclicChain, abbreviated
from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.declaration import ChainDeclaration, ObserverDeclaration
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
from percolator_core.observers.scheduling import unknown_names
from percolator_core.observers.yaml_file import Problems, YamlFile, did_you_mean, one_line, quoted, read_yaml
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from percolator_core.observers.graph import Graph

CHAIN_FILE: Final = "chain.yaml"


def stamps(folder: Path) -> frozenset[tuple[str, int]]:
    """Return a chain's YAML files and their modification times (ns), to detect a change."""
    found = set()
    for file in folder.glob("*.y*ml"):
        # Another process may remove the file at this moment.
        with suppress(OSError):
            found.add((file.name, file.stat().st_mtime_ns))
    return frozenset(found)


class Loaded(NamedTuple):
    """The declaration of a chain, its tables, its observers, sorted by name, and their graph."""

    chain: ChainDeclaration
    tables: tuple[TableDefinition, ...]
    models: Models
    observers: dict[str, Observer]
    graph: Graph


@dataclass(frozen=True, slots=True)
class _Tables:
    """The known tables; ``complete`` is false if models were not imported."""

    known: dict[str, TableDefinition] = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    complete: bool = False


class _Declared(NamedTuple):
    path: Path
    file: YamlFile
    observer: ObserverDeclaration


def load_declarations(folder: Path, import_functions: bool) -> Loaded:
    """Read and check the chain in the folder. Raises as `Chain.load`."""
    problems = Problems()
    files = _observer_files(folder, problems)
    chain, chain_file, tables = _read_chain(folder, import_functions, problems)
    declared = [found for path in files if (found := _read_observer(path, problems))]
    if not files:
        example = folder / "parse.yaml"
        problems.add(
            f"{folder}: has no observers; add one file per observer beside {CHAIN_FILE}, such as {example}"
        )
    _refuse_shared_names(declared, problems)
    for found in declared:
        _check_columns(found, tables, problems)
    if chain is not None and chain_file is not None:
        names = {found.observer.observer for found in declared}
        known = tables.known if tables.complete else None
        for place, what in unknown_names(chain.airflow, known, names or None):
            problems.add(chain_file.problem(("airflow", *place), what))
    functions = {found.path: _function(found, import_functions, problems) for found in declared}
    definitions = tuple(tables.known[name] for name in sorted(tables.known))
    observers = {
        found.observer.observer: Observer.from_declaration(found.observer, found.path, functions[found.path])
        for found in sorted(declared, key=lambda found: found.observer.observer)
    }
    graph = build_graph("" if chain is None else chain.chain, definitions, observers)
    _refuse_cycles(graph, {found.observer.observer: found.file for found in declared}, problems)
    problems.raise_if_any()
    assert chain is not None, "raise_if_any has raised for a chain that could not be read"
    return Loaded(chain, definitions, tables.models, observers, graph)


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
    raw = {
        name: TableDefinition(name, table.tablets, tuple(sorted(table.notify_only)))
        for name, table in chain.tables.items()
    }
    based = {name for name, table in chain.tables.items() if table.is_base_only}
    if import_functions:
        return chain, file, _with_models(chain, file, raw, based, problems)
    if chain.schemas:
        # A table with only a base may be a typed one.
        raw = {name: table for name, table in raw.items() if name not in based}
    return chain, file, _Tables(raw, complete=not chain.schemas)


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


def _read_observer(path: Path, problems: Problems) -> _Declared | None:
    file = read_yaml(path, problems)
    if file is None:
        return None
    observer = validate(ObserverDeclaration, file, problems)
    return None if observer is None else _Declared(path, file, observer)


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


def _function(found: _Declared, import_functions: bool, problems: Problems) -> ObserverFunction:
    name = found.observer.function
    if import_functions:
        try:
            return import_function(name)
        except ValueError as error:
            problems.add(found.file.problem(("function",), str(error)), getattr(error, "cause", None))
    return not_imported(name)


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
