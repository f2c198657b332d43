"""A chain: the observers of one folder, checked together.

A chain is a folder with ``chain.yaml`` and one YAML file an observer; every other ``*.yaml`` or ``*.yml`` in
it declares one. Subfolders and hidden files are not looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    from percolator_core.observers.graph import Graph
    from percolator_core.observers.observer import Column, Observer
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.tables.model import Table


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The tables and observers of one folder.

    ``graph`` is a ``networkx.DiGraph`` (its nodes and edges are described in
    ``percolator_core.observers.graph``), ``observed`` gives the names of the observers of each ``(table,
    column)``, and ``digest`` stands for which observers are active, on which columns and in which mode:
    workers with another digest refuse to start. What an observer does, how often it is tried again and where
    it may write is not part of it, so that code and settings can be rolled out one worker after the other.
    ``trace`` says whether runs record what they write. ``schemas`` are the modules of its typed tables, and
    ``models`` has the model of each by the table's name; empty where no code of the project was imported.
    ``scheduling`` is what its ``airflow:`` block says.
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
    scheduling: Scheduling = field(default_factory=Scheduling, repr=False)

    @classmethod
    def load(cls, path: str | PathLike[str], import_functions: bool = True) -> Chain:
        """Read and check the chain in the folder ``path``; touches no store.

        Functions, and models of typed tables, are imported with the current directory on ``sys.path``, which
        is put first there if it is absent. With ``import_functions=False`` no code of the project runs: the
        observers cannot be called, and nothing is known of typed tables. These are not among ``tables``, so
        where the chain has ``schemas`` a reference to a table that is not raw is not checked, and
        `create_tables` refuses.

        Raises ConfigurationError with one line for each thing that is wrong, and CyclicChain if all that is
        wrong is that observers would wake each other for ever.
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
            digest_of(observers),
            declared.trace,
            declared.schemas,
            loaded.models,
            declared.airflow,
        )

    def create_tables(self, db: Database, *, rolling: bool = False) -> None:
        """Make the chain's missing tables in ``db`` and activate its observers. May be repeated.

        Raises ConfigurationError while workers of another chain are alive; ``rolling`` lets them go on beside
        this one (`percolator_core.notifications.activation`). Also if a table is there with another
        definition, or the chain has typed tables and was loaded without its code.
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
        activate(db, self.observed, self.digest, rolling=rolling)

    def order(self) -> tuple[tuple[Observer, ...], ...]:
        """The observers in generations: each stands after those that wake it, declared loops aside."""
        return tuple(tuple(self.observers[name] for name in names) for names in generations(self.graph))


def digest_of(observers: Mapping[str, Observer] | Iterable[Observer]) -> str:
    """The SHA-256, in hexadecimal, of the observers' names, modes and columns, whatever their order."""
    members = observers.values() if isinstance(observers, Mapping) else observers
    active = sorted((observer.name, observer.mode, sorted(observer.observe)) for observer in members)
    return hashlib.sha256(json.dumps(active, separators=(",", ":")).encode()).hexdigest()
