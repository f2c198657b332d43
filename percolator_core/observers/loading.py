"""Reading a chain's folder and checking its declarations against each other.

Everything that can be checked is checked before anything is raised, so that one run shows all that is wrong.
What follows from an earlier mistake is left out: with no tables to go by, no column is called unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError, CyclicChain
from percolator_core.observers.declaration import ChainDeclaration, ObserverDeclaration, TableDeclaration
from percolator_core.observers.explain import validate
from percolator_core.observers.functions import ObserverFunction, import_function, not_imported
from percolator_core.observers.graph import build_graph, undeclared_cycles
from percolator_core.observers.observer import Observer
from percolator_core.observers.yaml_file import Problems, YamlFile, did_you_mean, one_line, quoted, read_yaml
from percolator_core.schema.definition import TableDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHAIN_FILE: Final = "chain.yaml"

Loaded = tuple[ChainDeclaration, tuple[TableDefinition, ...], dict[str, Observer]]


@dataclass(frozen=True, slots=True)
class _Declared:
    """An observer's declaration, and the file it came from."""

    path: Path
    file: YamlFile
    observer: ObserverDeclaration


def load_declarations(folder: Path, import_functions: bool) -> Loaded:
    """The chain's own declaration, its tables and its observers, sorted by name.

    Raises ConfigurationError with one line for each thing that is wrong; CyclicChain if only cycles are.
    """
    problems = Problems()
    files = _observer_files(folder, problems)
    chain = _read_chain(folder, problems)
    declared = [found for path in files if (found := _read_observer(path, problems))]
    if not files:
        example = folder / "parse.yaml"
        problems.add(
            f"{folder}: has no observers; add one file an observer beside {CHAIN_FILE}, such as {example}"
        )
    _refuse_shared_names(declared, problems)
    if chain is not None:
        for found in declared:
            _check_columns(found, chain.tables, problems)
    functions = {found.path: _function(found, import_functions, problems) for found in declared}
    tables = () if chain is None else _definitions(chain)
    observers = {
        found.observer.observer: Observer.from_declaration(found.observer, found.path, functions[found.path])
        for found in sorted(declared, key=lambda found: found.observer.observer)
    }
    _refuse_cycles(tables, observers, {found.observer.observer: found.file for found in declared}, problems)
    problems.raise_if_any()
    assert chain is not None, "a chain that could not be read is a problem, raised above"
    return chain, tables, observers


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


def _read_chain(folder: Path, problems: Problems) -> ChainDeclaration | None:
    path = folder / CHAIN_FILE
    if not path.exists():
        if not (folder / "chain.yml").exists():
            problems.add(
                f"{path}: is missing; it names the chain and its tables: "
                "'version: 1', 'chain: webindex', 'tables: {documents: {tablets: 16}}'"
            )
        return None
    file = read_yaml(path, problems)
    return None if file is None else validate(ChainDeclaration, file, problems)


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


def _check_columns(found: _Declared, tables: Mapping[str, TableDeclaration], problems: Problems) -> None:
    """Each table is declared, and weak observers, and they alone, watch notify-only columns."""
    observer = found.observer
    for field in ("observe", "reads", "writes"):
        for position, (table, column) in enumerate(getattr(observer, field)):
            if table not in tables:
                mend = did_you_mean(table, tables) or f"; declare it under 'tables' in {CHAIN_FILE}"
                what = f"table {quoted(table)} is not declared in {CHAIN_FILE}{mend}"
                problems.add(found.file.problem((field, position), what))
            elif field == "observe":
                wrong = _mode_problem(observer.mode, table, column, tables[table].notify_only)
                if wrong:
                    problems.add(found.file.problem((field, position), wrong))


def _mode_problem(mode: str, table: str, column: str, notify_only: tuple[str, ...]) -> str | None:
    if mode == "weak" and column not in notify_only:
        mend = did_you_mean(f"{table}.{column}", [f"{table}.{name}" for name in notify_only])
        if not mend:
            place = f"notify_only of {quoted(table)} in {CHAIN_FILE}"
            mend = f"; add {quoted(column)} to {place}, or write mode: strong"
        return f"a weak observer watches notify-only columns, and {table}.{column} is an ordinary one{mend}"
    if mode == "strong" and column in notify_only:
        return f"{table}.{column} is notify-only and wakes only weak observers; write mode: weak"
    return None


def _function(found: _Declared, import_functions: bool, problems: Problems) -> ObserverFunction:
    name = found.observer.function
    if import_functions:
        try:
            return import_function(name)
        except ValueError as error:
            problems.add(found.file.problem(("function",), str(error)))
    return not_imported(name)


def _definitions(chain: ChainDeclaration) -> tuple[TableDefinition, ...]:
    return tuple(
        TableDefinition(name, chain.tables[name].tablets, tuple(sorted(chain.tables[name].notify_only)))
        for name in sorted(chain.tables)
    )


def _refuse_cycles(
    tables: tuple[TableDefinition, ...],
    observers: Mapping[str, Observer],
    files: Mapping[str, YamlFile],
    problems: Problems,
) -> None:
    """Raise CyclicChain if nothing else is wrong; otherwise add each cycle to the problems."""
    cycles = undeclared_cycles(build_graph("", tables, observers))
    cyclic = Problems()
    for cycle in cycles:
        cyclic.add(
            files[cycle[0]].problem(
                ("writes",),
                f"the chain is cyclic: {' → '.join(cycle)}; break it, or write feedback: true in the "
                "observer that closes the loop and ends it by writing nothing when nothing changed",
            )
        )
    if cycles and not problems.lines:
        raise CyclicChain("\n".join(cyclic.lines), cycles[0])
    problems.lines.extend(cyclic.lines)
