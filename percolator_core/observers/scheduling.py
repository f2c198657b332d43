"""The ``airflow:`` block of ``chain.yaml``: how the chain is loaded, run, watched and kept in order.

The library reads and checks it, so that ``percolator check`` and editors know it. What makes DAGs of it is
the package ``percolator_airflow``. Nothing of it changes what a chain's observers do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)

from percolator_core.observers.rules import Declaration, Length, OptionalLength, parse_length
from percolator_core.observers.schedules import Schedule
from percolator_core.observers.yaml_file import Location, describe, did_you_mean, quoted

_MASTER: Final = (
    "The Spark master; if left out, that of PERCOLATOR_SPARK_MASTER, or all cores of the machine."
)
Format = Literal["html", "warc", "jsonl", "csv", "parquet"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
EVERY_MINUTE: Final = "* * * * *"

_SHARE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?%$"
_SIZE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(%|(B|KB|MB|GB|TB)|(KiB|MiB|GiB|TiB))$"
_UNITS: Final = {
    "B": 1,
    **{f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
}
_LENGTHS: Final = frozenset({"execution_timeout", "max_retry_delay", "retry_delay"})
"""The arguments of Airflow's tasks that are lengths of time."""

_ID_PATTERN: Final = r"[A-Za-z0-9_.\-]+"


def _share(value: object) -> float | None:
    if value is None:
        return None
    number: float | None = None
    if isinstance(value, str) and re.fullmatch(_SHARE_PATTERN, value):
        number = float(value[:-1]) / 100
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    if number is None:
        raise ValueError(f"expected a share such as 5% or 0.05, not {describe(value)}")
    if not 0 <= number <= 1:
        raise ValueError(f"{quoted(str(value))} is out of range; write a share from 0% to 100%")
    return number


def _memory(value: object) -> float | int | None:
    """Bytes as int; a share of the store's limit, 0 to 1, as float."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9.]+)([%A-Za-z]+)", value) if isinstance(value, str) else None
    if not isinstance(value, str) or found is None or not re.fullmatch(_SIZE_PATTERN, value):
        raise ValueError(
            f"expected a size such as 512MB or 4GiB, or a share of the store's limit such as 80%, "
            f"not {describe(value)}"
        )
    return _share(value) if found[2] == "%" else int(float(found[1]) * _UNITS[found[2]])


def _texts(value: object) -> list[Any]:
    """A single text is a list of one. In Python, a path is as good."""
    if isinstance(value, (str, os.PathLike)):
        return [os.fspath(value)]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected text or a list of texts, not {describe(value)}")
    return [os.fspath(one) if isinstance(one, os.PathLike) else one for one in value]


def _some_paths(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not all(value):
        raise ValueError("names nothing; write a file, a folder or a pattern such as pages/*.html")
    return value


def _columns(value: object) -> object:
    """A list of fields loads each under its own name."""
    if isinstance(value, (list, tuple)):
        return {name: name for name in value}
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"expected field: column lines or a list of fields, not {describe(value)}")
    return value


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"{quoted(name)} is no time zone; write for instance UTC or Europe/Berlin") from None
    return name


def _id(value: str) -> str:
    if not re.fullmatch(_ID_PATTERN, value):
        raise ValueError(f"{quoted(value)} is not an id; use letters, digits, and _ . -")
    return value


def _default_args(value: dict[str, Any]) -> dict[str, Any]:
    """Airflow takes lengths of time as timedelta, which YAML has not."""
    for name in _LENGTHS & value.keys():
        try:
            value = {**value, name: timedelta(seconds=parse_length(value[name]))}
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return value


def _at_least(low: int) -> Any:
    def check(value: int | None) -> int | None:
        if value is not None and value < low:
            raise ValueError(f"{value} is out of range; write {low} or more")
        return value

    return AfterValidator(check)


Share = Annotated[
    float | None,
    BeforeValidator(_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _SHARE_PATTERN},
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "null"},
            ]
        }
    ),
]
Memory = Annotated[
    float | int | None,
    BeforeValidator(_memory),
    WithJsonSchema({"type": ["string", "null"], "pattern": _SIZE_PATTERN}),
]
Number = Annotated[StrictInt, _at_least(0), WithJsonSchema({"type": "integer", "minimum": 0})]
Positive = Annotated[StrictInt, _at_least(1), WithJsonSchema({"type": "integer", "minimum": 1})]
_OPTIONAL: Final = {"type": ["integer", "null"]}
OptionalNumber = Annotated[StrictInt | None, _at_least(0), WithJsonSchema({**_OPTIONAL, "minimum": 0})]
OptionalPositive = Annotated[StrictInt | None, _at_least(1), WithJsonSchema({**_OPTIONAL, "minimum": 1})]
_TEXTS_SCHEMA: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
}
Texts = Annotated[tuple[StrictStr, ...], BeforeValidator(_texts), WithJsonSchema(_TEXTS_SCHEMA)]
Paths = Annotated[Texts, AfterValidator(_some_paths)]
Fields = Annotated[
    dict[StrictStr, StrictStr] | None,
    BeforeValidator(_columns),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "array", "items": {"type": "string"}},
                {"type": "null"},
            ]
        }
    ),
]
DefaultArgs = Annotated[dict[StrictStr, Any], AfterValidator(_default_args)]
Id = Annotated[StrictStr, AfterValidator(_id)]
Zone = Annotated[StrictStr, AfterValidator(_zone)]


class SourceDeclaration(Declaration):
    """Files that are loaded into one table."""

    table: StrictStr = Field(description="The table that the records go into.")
    paths: Paths = Field(
        description="Files, folders or patterns; relative ones are looked for in the project's folder."
    )
    format: Format | None = Field(None, description="Of the files; when left out, what their suffixes say.")
    key: StrictStr | None = Field(
        None, description="The field that holds the row key: jsonl, csv and parquet into raw tables."
    )
    columns: Fields = Field(
        None, description="Load these fields only: 'field: column' lines, or a list of fields."
    )
    base_url: StrictStr | None = Field(None, description="What the row keys of html start with.")
    delimiter: StrictStr | None = Field(None, description="Of csv; when left out, what the header says.")
    encoding: StrictStr | None = Field(None, description="Of csv; UTF-8 when left out.")
    null_text: StrictStr = Field("", description="The csv field that stands for no cell.")
    delete_missing: StrictStr | None = Field(
        None, description="Rows whose keys begin so, and that the source no longer has, are deleted."
    )


class DagDeclaration(Declaration):
    """What each of the DAGs has."""

    enabled: StrictBool = Field(True, description="false: there is no such DAG.")
    default_args: DefaultArgs = Field(
        default_factory=dict, description="Arguments of this DAG's tasks, laid over those of all DAGs."
    )


class LoadDeclaration(DagDeclaration):
    """``<chain>_load``: bulk loads with Spark."""

    schedule: Schedule = Field(None, description="When it runs; by hand only when left out.")
    sources: tuple[SourceDeclaration, ...] = Field((), description="What is loaded, one task an entry.")
    aside: StrictStr | None = Field(
        None, description="The folder for malformed records; one in Airflow's home when left out."
    )
    max_bad: OptionalNumber = Field(
        None, description="A load of more malformed records than this fails; any number when left out."
    )
    master: StrictStr | None = Field(None, description=_MASTER)
    width: Positive = Field(256, description="Transactions that a Spark task runs at a time.")


class ObserveDeclaration(DagDeclaration):
    """``<chain>_observe``: the observers, in the order of the graph, until the chain is idle."""

    engine: Literal["spark", "local"] = Field(
        "spark", description="local: in the Airflow task's own process, without Spark."
    )
    schedule: Schedule = Field(None, description="When it runs besides, whether or not anything was noticed.")
    watch: StrictBool = Field(
        True, description="It starts within seconds when cells become dirty and no worker is there."
    )
    remind: Length = Field(
        30.0,
        json_schema_extra={"default": "30s"},
        description="While cells stay dirty and nothing runs, it is started again so often.",
    )
    budget: OptionalLength = Field(
        None, description="The longest drain of one task, which then fails; a retry carries on."
    )
    width: OptionalPositive = Field(None, description="Runs under way at a time, in each task of Spark.")
    threads: Positive = Field(8, description="Runs of observers with 'executor: threads' at a time.")
    tasks: OptionalPositive = Field(
        None, description="Spark tasks of a drain; when left out, one a tablet of the largest table."
    )
    master: StrictStr | None = Field(None, description=_MASTER)


class ObserverThresholds(Declaration):
    """What of one observer is a breach; null: nothing is."""

    backlog: OptionalNumber = Field(None, description="More dirty cells than this.")
    oldest: OptionalLength = Field(
        600.0,
        json_schema_extra={"default": "10m"},
        description="A cell that could have been claimed longer ago than this.",
    )
    quarantine: OptionalNumber = Field(0, description="More cells in quarantine than this.")
    failure_rate: Share = Field(
        0.5,
        json_schema_extra={"default": "50%"},
        description="A larger share of the runs since the last look has failed.",
    )


class ThresholdsDeclaration(ObserverThresholds):
    """What is a breach: of each observer, and of the store."""

    lock_age: OptionalLength = Field(
        600.0,
        json_schema_extra={"default": "10m"},
        description="A lock that was written or refreshed longer ago than this.",
    )
    memory: Memory = Field(
        None, description="More memory in the store: a size, or a share of its limit such as 80%."
    )
    workers: Number = Field(0, description="Fewer continuous workers than this.")
    observers: dict[StrictStr, ObserverThresholds] = Field(
        default_factory=dict, description="Other numbers for some observers, by name."
    )


class MonitorDeclaration(DagDeclaration):
    """``<chain>_monitor``: how the chain is, against thresholds, and a history of it."""

    schedule: Schedule = Field(EVERY_MINUTE, description="How often it looks.")
    thresholds: ThresholdsDeclaration = Field(
        default_factory=ThresholdsDeclaration, description="What counts as a breach."
    )
    on_breach: Literal["fail", "warn"] = Field(
        "fail", description="What a breach does to the run; warn: it succeeds, with a warning in its log."
    )
    history: Length = Field(
        2 * 86_400.0,
        json_schema_extra={"default": "2d"},
        description="How long looks are kept, for the plots.",
    )
    drain: StrictBool = Field(
        True, description="Starts the observers where cells are due and neither worker nor drain is there."
    )


class MaintainDeclaration(DagDeclaration):
    """``<chain>_maintain``: stale locks are resolved, old versions are collected."""

    schedule: Schedule = Field("@hourly", description="When it runs.")
    keep: Length = Field(
        3600.0,
        json_schema_extra={"default": "1h"},
        description="Versions that were current at any time since then stay.",
    )
    older_than: Length = Field(
        30.0, json_schema_extra={"default": "30s"}, description="Younger locks are left alone."
    )
    parts: Positive = Field(4, description="Tasks that the tablets are cut into.")


class Scheduling(Declaration):
    """How Airflow runs a chain; all of it has defaults."""

    connection: Id = Field("percolator_default", description="The Airflow connection of the store.")
    namespace: StrictStr | None = Field(
        None, description="In the store; the chain's name when neither this nor the connection says it."
    )
    default_args: DefaultArgs = Field(
        default_factory=dict,
        description="Arguments of all tasks, named as in Airflow: owner, pool, retries, execution_timeout …",
    )
    tags: Texts = Field((), description="Tags of the DAGs, besides 'percolator' and the chain's name.")
    timezone: Zone = Field("UTC", description="In which the schedules are told.")
    load: LoadDeclaration = Field(default_factory=LoadDeclaration, description="The loads.")
    observe: ObserveDeclaration = Field(default_factory=ObserveDeclaration, description="The observers.")
    monitor: MonitorDeclaration = Field(default_factory=MonitorDeclaration, description="The look-out.")
    maintain: MaintainDeclaration = Field(default_factory=MaintainDeclaration, description="The clean-up.")


def unknown_names(
    declared: Scheduling, tables: Collection[str] | None, observers: Collection[str] | None
) -> Iterator[tuple[Location, str]]:
    """Where the block names what the chain has not, and a sentence about it.

    Args:
        declared: the block.
        tables: the chain's; None when not all of them are known.
        observers: likewise.
    """
    for position, source in enumerate(declared.load.sources):
        if tables is not None and source.table not in tables:
            mend = did_you_mean(source.table, tables) or "; declare it under 'tables' in chain.yaml"
            place: Location = ("load", "sources", position, "table")
            yield place, f"table {quoted(source.table)} is not declared{mend}"
    for name in declared.monitor.thresholds.observers:
        if observers is not None and name not in observers:
            mend = did_you_mean(name, observers) or f"; it has {', '.join(sorted(observers))}"
            place = ("monitor", "thresholds", "observers", name)
            yield place, f"the chain has no observer {quoted(name)}{mend}"
