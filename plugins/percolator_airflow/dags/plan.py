"""The common part of a chain's DAGs: its ``airflow:`` block, overridden by the arguments of a DAG file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable, DeltaTriggerTimetable

from percolator_airflow.assets import table_asset
from percolator_airflow.dags.document import document
from percolator_airflow.names import PARTS, TAG, dag_ids
from percolator_core.errors import ConfigurationError
from percolator_core.observers.declaration import CHAIN_FILE
from percolator_core.observers.explain import validate
from percolator_core.observers.rules import Declaration
from percolator_core.observers.scheduling import Scheduling, unknown_names
from percolator_core.observers.yaml_file import Problems, YamlFile, did_you_mean

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from percolator_airflow.chains import ChainFolder
    from percolator_core.observers import Chain
    from percolator_core.observers.scheduling import DagDeclaration

CALL: Final = "chain_dags(…)"
"""A message about an argument of a DAG file has this text in the place of a YAML file's name."""

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The default start date of the DAGs. Any day of the past works: no run is created for the past."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
}
"""Arguments of all tasks; the chain and the DAG file override them."""

_LONGEST_WAIT: Final = timedelta(minutes=10)
"""The longest wait between two tries of a task, unless the first wait is longer."""

_TASK_ARGUMENTS: Final = frozenset(inspect.signature(BaseOperator.__init__).parameters) - {"self", "kwargs"}
"""The known default arguments. Airflow would ignore a misspelled argument, so it is refused here."""


AnyDeclaration = TypeVar("AnyDeclaration", bound=Declaration)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a chain's DAGs."""

    folder: ChainFolder
    settings: Scheduling
    default_args: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    start_date: datetime = EPOCH

    @property
    def chain(self) -> Chain:
        """The chain, without its code."""
        return self.folder.declared

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the DAGs by part."""
        return dag_ids(self.chain.name)

    def place(self) -> dict[str, Any]:
        """Return the arguments that all operators of this package share: the chain and its store."""
        return {
            "chain": str(self.folder.path),
            "project": str(self.folder.project),
            "conn_id": self.settings.connection,
            "namespace": self.settings.namespace,
        }

    def asset(self, table: str) -> Asset:
        """Return the asset of a table in the chain's store."""
        return table_asset(table, self.settings.connection, self.settings.namespace or self.chain.name)

    def dag(self, part: str, block: DagDeclaration, description: str, schedule: Any, **settings: Any) -> DAG:
        """Return one of the DAGs; it has one active run at most, and no runs for the past."""
        default_args = self._default_args(block)
        return DAG(
            dag_id=self.ids[part],
            description=description,
            schedule=schedule,
            doc_md=document(self.chain, part, description),
            start_date=self.start_date,
            catchup=False,
            max_active_runs=1,
            default_args=default_args,
            tags=list(dict.fromkeys([TAG, self.chain.name, *self.settings.tags, *self.tags])),
            **settings,
        )

    def _default_args(self, block: DagDeclaration) -> dict[str, Any]:
        """Merge the arguments of package, chain, block and DAG file; later values replace earlier ones."""
        declared = self.settings.default_args | block.default_args
        unknown = sorted(declared.keys() - _TASK_ARGUMENTS)
        if unknown:
            raise ConfigurationError(
                f"{self.folder.path / CHAIN_FILE}: airflow.default_args: tasks of Airflow have no argument "
                f"{unknown[0]!r}{did_you_mean(unknown[0], _TASK_ARGUMENTS)}"
            )
        found: dict[str, Any] = {**_DEFAULTS, **declared, **self.default_args}
        delay = found["retry_delay"]
        first_wait = delay if isinstance(delay, timedelta) else timedelta(seconds=delay or 0)
        return {"max_retry_delay": max(_LONGEST_WAIT, first_wait)} | found

    def timetable(self, schedule: str | timedelta | None) -> Any:
        """Return Airflow's timetable for a declared schedule."""
        if isinstance(schedule, timedelta):
            return DeltaTriggerTimetable(schedule)
        if schedule is None:
            return None
        return CronTriggerTimetable(schedule, timezone=self.settings.timezone)


def merged(chain: Chain, given: Mapping[str, Any]) -> Scheduling:
    """Return the chain's block, overridden by the keys of ``given``.

    Args:
        chain: the chain.
        given: keys and values as in the block; durations may be timedeltas, paths may be path objects.
            A part that is False has no DAG. None overrides nothing.

    Raises:
        ConfigurationError: ``given`` is invalid, with one line for each mistake.
    """
    given = {name: value for name, value in given.items() if value is not None}
    for part in PARTS:
        if given.get(part) is False:
            given[part] = {"enabled": False}
        elif isinstance(given.get(part), Mapping):
            given[part] = dict(given[part])
    problems = Problems()
    arguments = YamlFile.of_arguments(CALL, given)
    override = validate(Scheduling, arguments, problems)
    problems.raise_if_any()
    assert override is not None, "raise_if_any has raised for an invalid argument"
    # The names of typed tables are unknown without the chain's code; a task reports a wrong name.
    tables = None if chain.schemas else [table.name for table in chain.tables]
    for place, what in unknown_names(override, tables, chain.observers):
        problems.add(arguments.problem(place, what))
    problems.raise_if_any()
    return overridden(chain.scheduling, override)


def overridden(base: AnyDeclaration, override: AnyDeclaration) -> AnyDeclaration:
    """Return ``base`` with the fields that are set in ``override``; nested declarations merge likewise."""
    changed: dict[str, Any] = {}
    for name in override.model_fields_set:
        before, value = getattr(base, name), getattr(override, name)
        if isinstance(value, Declaration):
            value = overridden(before, value)
        elif isinstance(value, dict):
            value = before | {
                key: overridden(before[key], one) if isinstance(one, Declaration) and key in before else one
                for key, one in value.items()
            }
        changed[name] = value
    return base.model_copy(update=changed)
