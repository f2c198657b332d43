"""A chain: the observers of one folder, checked together.

A chain is a folder with ``chain.yaml`` and one YAML file per observer: every other ``*.yaml`` or ``*.yml``
file in it declares an observer. Subfolders and hidden files are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from percolator_core.errors import ConfigurationError
from percolator_core.notifications.activation import activate
from percolator_core.observers.graph import build_graph, generations, observed_columns
from percolator_core.observers.loading import load_declarations
from percolator_core.observers.scheduling import Scheduling

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database
    from percolator_core.observers.declaration import BaseDeclaration
    from percolator_core.observers.graph import Graph
    from percolator_core.observers.observer import Column, Observer
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.tables.model import Table


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The tables and observers of one folder.

    ``graph`` is a ``networkx.DiGraph``; ``percolator_core.observers.graph`` describes its nodes and edges.
    ``observed`` has the names of the observers of each ``(table, column)``.

    ``digest`` is a hash of the observers' names, columns and modes. While workers with one digest are alive,
    workers with another digest refuse to start. Code, retries and ``writes`` do not change the digest, so
    they can be rolled out one worker at a time.

    If ``trace`` is true, each run records the cells that it writes. ``schemas`` are the modules of the typed
    tables. ``models`` has the models by table name; it is empty if the project's code was not imported.
    ``bases`` has the declared bases by table. ``scheduling`` is the ``airflow:`` block.
    """

    name: str
    path: Path
    tables: tuple[TableDefinition, ...]
    observers: Mapping[str, Observer]
    graph: Graph = field(repr=False)
    observed: dict[Column, tuple[str, ...]] = field(repr=False)
    digest: str
    trace: bool = False
    schemas: tuple[str, ...] = ()
    models: Mapping[str, type[Table]] = field(default_factory=dict, repr=False)
    bases: Mapping[str, BaseDeclaration] = field(default_factory=dict, repr=False)
    scheduling: Scheduling = field(default_factory=Scheduling, repr=False)

    @classmethod
    def load(cls, path: str | PathLike[str], import_functions: bool = True) -> Chain:
        """Read and check the chain in the folder ``path``. No store is needed.

        Functions and the models of typed tables are imported; the current directory is put first on
        ``sys.path`` if it is not on it. With ``import_functions=False``, no code of the project runs: the
        observers cannot be called, and ``tables`` lacks the typed tables. If the chain has ``schemas``,
        references to tables that are not raw are then not checked, and `create_tables` raises.

        Raises ConfigurationError with one line per problem, or CyclicChain if the only problems are cycles.
        """
        folder = Path(path)
        loaded = load_declarations(folder, import_functions)
        declared, observers = loaded.chain, loaded.observers
        return cls(
            declared.chain,
            folder,
            loaded.tables,
            observers,
            build_graph(declared.chain, loaded.tables, observers),
            observed_columns(observers.values()),
            digest_of(observers.values()),
            declared.trace,
            declared.schemas,
            loaded.models,
            {name: table.base for name, table in declared.tables.items() if table.base is not None},
            declared.airflow,
        )

    def create_tables(self, db: Database, *, rolling: bool = False) -> None:
        """Create the chain's missing tables in ``db`` and activate its observers. This may be repeated.

        A table gets the base that the chain declares; a base that the chain does not declare stays.

        Raises:
            ConfigurationError: workers with another digest are alive and ``rolling`` is false
                (`percolator_core.notifications.activation`), a table exists with another definition, or the
                chain has typed tables but was loaded with ``import_functions=False``; or `Database.set_base`
                refuses a declared base.
        """
        if self.schemas and not self.models:
            raise ConfigurationError(
                f"{self.path} has typed tables, whose models were not imported: load the chain with "
                "import_functions=True"
            )
        for table in self.tables:
            if table.is_typed:
                db.create_table(self.models[table.name])
                continue
            db.create_table(table.name, tablets=table.tablets, notify_only=table.notify_only)
        for name, base in self.bases.items():
            give_base(db, name, base, self.path)
        activate(db, self.observed, self.digest, rolling=rolling)

    def order(self) -> tuple[tuple[Observer, ...], ...]:
        """Return the observers in generations, in the order in which they wake each other."""
        return tuple(tuple(self.observers[name] for name in names) for names in generations(self.graph))


def give_base(db: Database, table: str, base: BaseDeclaration, folder: Path) -> None:
    """Give a table the declared base, unless it has this base. Raises as `Database.set_base`."""
    # pyarrow is imported only if a chain has a base.
    from percolator_core.base.location import Location, local_path

    place = Location(local_path(base.location, folder) or base.location)
    rule = db.catalog.table(table).definition.base
    after = None if base.cold_after is None else timedelta(seconds=base.cold_after)
    wanted = (place.absolute_url, after and round(after.total_seconds() * 1e6), base.memory)
    if rule is None or (rule.location, rule.cold_after, rule.memory) != wanted:
        db.set_base(table, place.absolute_url, cold_after=after, memory=base.memory)


def digest_of(observers: Iterable[Observer]) -> str:
    """Return the SHA-256, in hexadecimal, of the observers' names, modes and columns in sorted order."""
    active = sorted((observer.name, observer.mode, sorted(observer.observe)) for observer in observers)
    return hashlib.sha256(json.dumps(active, separators=(",", ":")).encode()).hexdigest()
