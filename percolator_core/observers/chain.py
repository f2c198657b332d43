"""A chain: the observers of one folder, checked together.

A chain is a folder with ``chain.yaml`` and one YAML file per observer: every other ``*.yaml`` or ``*.yml``
file in it declares an observer. Subfolders and hidden files are ignored. ``chain.yaml`` may also name modules
with functions that ``@observer`` declares, and modules with views and their functions. A notebook or a
test makes a chain without a folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import ConfigurationError
from percolator_core.migration.difference import Allowed, Difference, Wanted, give_base
from percolator_core.notifications.activation import activate
from percolator_core.observers.graph import generations, observed_columns
from percolator_core.observers.loading import Loaded, declare, load_declarations
from percolator_core.observers.scheduling import Scheduling
from percolator_core.runtime.html import html_table
from percolator_core.schema.definitions import BaseRule

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database
    from percolator_core.observers.declaration import BaseDeclaration
    from percolator_core.observers.graph import Graph
    from percolator_core.observers.observer import Column, Observer
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.tables.model import Table
    from percolator_core.views.plan import ViewPlan

_LARGEST_DRAWING: Final = 1 << 20
_LONGEST_TEXT: Final = 1_000
"""The limits of a drawing in a notebook, in bytes, and of the text in its place, in characters."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The tables and observers of one folder.

    ``graph`` is a ``networkx.DiGraph``; ``percolator_core.observers.graph`` describes its nodes and edges.
    ``observed`` has the names of the observers of each ``(table, column)``.

    ``digest`` is a hash of the observers' names, columns and modes. While workers with one digest are alive,
    workers with another digest refuse to start. Code, retries and ``writes`` do not change the digest, so
    they can be rolled out one worker at a time.

    With ``trace``, each run records the cells that it writes. ``schemas`` are the modules of the typed
    tables. ``models``, by table name, is empty if the project's code was not imported. ``bases`` has the
    declared bases by table. ``scheduling`` is the ``airflow:`` block. ``has_folder`` is false for a chain of
    `Chain.of`, whose ``path`` is the current folder. ``views`` has the plans of the views by name,
    ``view_modules`` the modules with views and functions in Python.
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
    has_folder: bool = field(default=True, repr=False)
    views: Mapping[str, ViewPlan] = field(default_factory=dict, repr=False)
    view_modules: tuple[str, ...] = ()

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
        return cls._made(load_declarations(folder, import_functions), folder, has_folder=True)

    @classmethod
    def of(
        cls,
        name: str,
        observers: Iterable[object],
        *,
        models: Iterable[type[Table]] = (),
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        views: Iterable[object] = (),
        trace: bool = False,
    ) -> Chain:
        """Return a chain of functions, without a folder: for notebooks, scripts and tests.

        Commands, several worker processes, ``executor: processes``, Airflow and Spark need a chain in a
        folder.

        Args:
            name: the chain's name: a lower-case letter, then up to 62 of a-z, 0-9 and _.
            observers: functions that `percolator_core.observer` declares, or modules with such functions.
            models: the typed tables.
            tables: the raw tables, with settings as in ``chain.yaml``:
                ``{"queue": {"tablets": 1, "notify_only": ["added"]}}``.
            views: subclasses of `percolator_core.View`, functions that `percolator_core.view_function`
                declares, or modules with both.
            trace: each run records the cells that it writes.

        Raises:
            ConfigurationError: one line per problem, with the file and line of the function or class.
            CyclicChain: the only problems are cycles.
        """
        loaded = declare(name, observers, models, tables or {}, views, trace=trace)
        return cls._made(loaded, Path(), has_folder=False)

    @classmethod
    def _made(cls, loaded: Loaded, folder: Path, *, has_folder: bool) -> Chain:
        declared, observers = loaded.chain, loaded.observers
        return cls(
            declared.chain,
            folder,
            loaded.tables,
            observers,
            loaded.graph,
            observed_columns(observers.values()),
            digest_of(observers.values(), loaded.view_digests),
            declared.trace,
            declared.schemas,
            loaded.models,
            {name: table.base for name, table in declared.tables.items() if table.base is not None},
            declared.airflow,
            has_folder,
            loaded.views,
            declared.views,
        )

    def folder(self, purpose: str) -> Path:
        """Return the chain's folder. Raises ConfigurationError, which names the purpose, if it has none."""
        if not self.has_folder:
            raise ConfigurationError(
                f"the chain {self.name} was made by Chain.of, and {purpose} needs a chain in a folder: put "
                "its functions into a module, and name it under 'observers' in chain.yaml"
            )
        return self.path

    def create_tables(self, db: Database, *, rolling: bool = False) -> None:
        """Create the chain's missing tables in ``db`` and activate its observers. This may be repeated.

        A table gets the base that the chain declares; a base that the chain does not declare stays.

        Raises:
            ConfigurationError: workers with another digest are alive and ``rolling`` is false, a table exists
                with another definition, or the chain has typed tables but was loaded with
                ``import_functions=False``; or `Database.set_base` refuses a declared base.
        """
        self._must_have_models()
        for table in self.tables:
            if table.view is None:
                db.create_defined(table)
        of_views = [table for table in self.tables if table.view is not None]
        if of_views:
            from percolator_core.views import life  # most chains have no views

            life.create(db, of_views)
        for name, base in self.bases.items():
            rule = declared_rule(base, self.path)
            if not rule.agrees_with(db.catalog.table(name).definition.base):
                give_base(db, name, rule)
        activate(db, self.observed, self.digest, rolling=rolling)
        if of_views or any(table.view is not None for table in db.catalog.tables()):
            from percolator_core.views import life

            life.record_active(db, self.views.values())

    def _repr_html_(self) -> str:
        """Show the graph in a notebook; if it is very large, a list of the observers."""
        from percolator_core.observers.drawing.svg import svg  # only a notebook needs it

        drawn = svg(self.graph).encode()
        if len(drawn) > _LARGEST_DRAWING:
            rows = (
                [one.name, one.mode, _names(one.observe), _names(one.writes)]
                for one in self.observers.values()
            )
            return html_table(["observer", "mode", "observes", "writes"], rows, f"chain {self.name}")
        # As an image, so that its styles do not change the notebook. The drawing has a background of its own.
        text = escape(f"chain {self.name}: {', '.join(self.observers)}"[:_LONGEST_TEXT])
        image = base64.b64encode(drawn).decode()
        return f'<img alt="{text}" src="data:image/svg+xml;base64,{image}" style="max-width:100%">'

    def migrate(
        self,
        db: Database,
        *,
        dry_run: bool = False,
        allow_drop: Collection[str] = (),
        allow_narrowing: Collection[str] = (),
        report: Callable[[Difference], None] | None = None,
    ) -> list[Difference]:
        """Change the chain's tables in ``db`` until they agree with the chain, while clients use them.

        The bases that the chain declares are set, too. No observer is activated. Return the differences, and
        raise, as `Database.migrate`; also ConfigurationError if the chain was loaded with
        ``import_functions=False`` and has typed tables.
        """
        self._must_have_models()
        wanted = []
        for table in self.tables:
            if table.view is not None:
                continue  # it never changes, and is created with the observers that write it
            base = self.bases.get(table.name)
            with_base = table if base is None else table.with_(base=declared_rule(base, self.path))
            wanted.append(Wanted(with_base, self.models.get(table.name)))
        allowed = Allowed(allow_drop, allow_narrowing)
        return db.migrate_to(wanted, allowed, dry_run=dry_run, report=report)

    def _must_have_models(self) -> None:
        if self.schemas and not self.models:
            raise ConfigurationError(
                f"{self.path} has typed tables, whose models were not imported: load the chain with "
                "import_functions=True"
            )

    def order(self) -> tuple[tuple[Observer, ...], ...]:
        """Return the observers in generations, in the order in which they wake each other."""
        return tuple(tuple(self.observers[name] for name in names) for names in generations(self.graph))


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(".".join(column) for column in columns)


def declared_rule(base: BaseDeclaration, folder: Path) -> BaseRule:
    """Return the rule of a base that the chain in ``folder`` declares."""
    # pyarrow is imported only if a chain has a base.
    from percolator_core.base.location import Location, local_path

    place = Location(local_path(base.location, folder) or base.location)
    after = None if base.cold_after is None else round(base.cold_after * 1e6)
    return BaseRule(place.absolute_url, "", after, base.memory)


def digest_of(observers: Iterable[Observer], views: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the SHA-256, in hexadecimal, of the observers' names, modes and columns in sorted order.

    The observers of views count by the digests of the views' files, ``views``: these are known without the
    models.
    """
    own = (one for one in observers if one.view is None)
    active: list[Any] = [(one.name, one.mode, sorted(one.observe)) for one in own]
    active = sorted(active) + sorted(views.items())
    return hashlib.sha256(json.dumps(active, separators=(",", ":")).encode()).hexdigest()
