"""The ``airflow:`` block of ``chain.yaml``: how Airflow loads, runs, monitors and maintains the chain.

The library reads and checks the block, so that ``percolator check`` and editors know it. The package
``percolator_airflow`` makes DAGs from the block. The block does not change the behaviour of the observers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema

from percolator_core.notation.amounts import UNIT_BYTES
from percolator_core.observers.rules import Declaration, Length, Schedule, Size, parse_length
from percolator_core.observers.yaml_file import Location, describe, did_you_mean, quoted

_MASTER: Final = "The Spark master. Default: PERCOLATOR_SPARK_MASTER, or all cores of the machine."
Format = Literal["html", "warc", "jsonl", "csv", "parquet"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)

_SHARE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?%$"
_SIZE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(%|(B|KB|MB|GB|TB)|(KiB|MiB|GiB|TiB))$"
_LENGTHS: Final = frozenset({"execution_timeout", "max_retry_delay", "retry_delay"})
"""The arguments of Airflow's tasks that are durations."""

_ID_PATTERN: Final = r"[A-Za-z0-9_.\-]+"


def _share(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(_SHARE_PATTERN, value):
        number = float(value[:-1]) / 100
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise ValueError(f"expected a share such as 5% or 0.05, not {describe(value)}")
    if not 0 <= number <= 1:
        raise ValueError(f"{quoted(str(value))} is out of range; write a share from 0% to 100%")
    return number


def _positive_share(value: object) -> float:
    share = _share(value)
    if not share:
        raise ValueError(f"{quoted(str(value))} is out of range; write a share above 0%, up to 100%")
    return share


def _memory(value: object) -> float | int:
    """Return the bytes of a size (int), or a share of the store's memory limit from 0 to 1 (float)."""
    if not isinstance(value, str) or not re.fullmatch(_SIZE_PATTERN, value):
        raise ValueError(
            f"expected a size such as 512MB or 4GiB, or a share of the store's limit such as 80%, "
            f"not {describe(value)}"
        )
    unit = value.lstrip("0123456789.")
    return _share(value) if unit == "%" else int(float(value.removesuffix(unit)) * UNIT_BYTES[unit])


def _texts(value: object) -> list[Any]:
    """Accept a single text as a list of one. A caller in Python may also give a path."""
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
    """Accept a list of fields; each field is loaded into the column of the same name."""
    if isinstance(value, (list, tuple)):
        return {name: name for name in value}
    if not isinstance(value, dict):
        raise ValueError(
            f"expected lines of the form 'field: column', or a list of fields, not {describe(value)}"
        )
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
    """Convert durations to timedelta, the type that Airflow expects."""
    for name in _LENGTHS & value.keys():
        try:
            value = {**value, name: timedelta(seconds=parse_length(value[name]))}
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return value


def _any_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


_PERCENT: Final = {"type": "string", "pattern": _SHARE_PATTERN}

Share = Annotated[
    float,
    BeforeValidator(_share),
    _any_of(_PERCENT, {"type": "number", "minimum": 0, "maximum": 1}),
]
PositiveShare = Annotated[
    float,
    BeforeValidator(_positive_share),
    _any_of(_PERCENT, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]
Memory = Annotated[
    float | int, BeforeValidator(_memory), WithJsonSchema({"type": "string", "pattern": _SIZE_PATTERN})
]
Number = Annotated[StrictInt, Field(ge=0)]
Positive = Annotated[StrictInt, Field(ge=1)]
Texts = Annotated[
    tuple[StrictStr, ...],
    BeforeValidator(_texts),
    _any_of({"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Paths = Annotated[Texts, AfterValidator(_some_paths)]
Fields = Annotated[
    dict[StrictStr, StrictStr],
    BeforeValidator(_columns),
    _any_of(
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}},
    ),
]
DefaultArgs = Annotated[dict[StrictStr, Any], AfterValidator(_default_args)]
Id = Annotated[StrictStr, AfterValidator(_id)]
Zone = Annotated[StrictStr, AfterValidator(_zone)]


class SourceDeclaration(Declaration):
    """Files to load into one table."""

    table: StrictStr = Field(description="The table to load the records into.")
    paths: Paths = Field(
        description="Files, folders or patterns; relative paths start from the project's folder."
    )
    format: Format | None = Field(None, description="The format of the files. Default: from their suffixes.")
    key: StrictStr | None = Field(
        None, description="The field with the row key, if jsonl, csv or parquet is loaded into a raw table."
    )
    columns: Fields | None = Field(
        None, description="Load only these fields: 'field: column' lines, or a list of fields."
    )
    base_url: StrictStr | None = Field(None, description="The prefix of the row keys of html files.")
    delimiter: StrictStr | None = Field(
        None, description="The delimiter of csv files. Default: from the header line."
    )
    encoding: StrictStr | None = Field(None, description="The encoding of csv files. Default: UTF-8.")
    null_text: StrictStr = Field("", description="A csv field with this text writes no cell.")
    delete_missing: StrictStr | None = Field(
        None, description="Rows with this key prefix that the source no longer has are deleted."
    )


class DagDeclaration(Declaration):
    """The keys that the block of each DAG has."""

    enabled: StrictBool = Field(True, description="With false, the DAG does not exist.")
    default_args: DefaultArgs = Field(
        default_factory=dict, description="Arguments of this DAG's tasks, which override those of all DAGs."
    )


class LoadDeclaration(DagDeclaration):
    """``<chain>_load``: load files in bulk."""

    schedule: Schedule = Field(None, description="When it runs. Default: only when it is triggered.")
    sources: tuple[SourceDeclaration, ...] = Field((), description="The sources to load, one task per entry.")
    aside: StrictStr | None = Field(
        None, description="The folder for malformed records. Default: a folder in Airflow's home."
    )
    max_bad: Number | None = Field(
        None, description="A load with more malformed records than this fails. Default: no limit."
    )
    engine: Literal["spark", "local"] = Field(
        "spark", description="local: the process of the Airflow task loads, without Spark."
    )
    master: StrictStr | None = Field(None, description=_MASTER)
    width: Positive = Field(256, description="Concurrent transactions; with Spark, in each task.")


class ObserveDeclaration(DagDeclaration):
    """``<chain>_observe``: run the observers, in the order of the graph, until the chain is idle."""

    engine: Literal["spark", "local"] = Field(
        "spark", description="local: the observers run in the process of the Airflow task, without Spark."
    )
    schedule: Schedule = Field(None, description="When it also runs, even if no dirty cell was noticed.")
    watch: StrictBool = Field(
        True, description="The DAG starts within seconds after cells become dirty, if no worker runs."
    )
    remind: Length = Field(
        30.0,
        json_schema_extra={"default": "30s"},
        description="While cells stay dirty and nothing runs, the DAG starts again after each such interval.",
    )
    budget: Length | None = Field(
        None, description="A task that takes longer fails; its retry continues the drain."
    )
    width: Positive | None = Field(None, description="Concurrent runs of observers in each Spark task.")
    threads: Positive = Field(8, description="Concurrent runs of observers with 'executor: threads'.")
    tasks: Positive | None = Field(
        None, description="How many Spark tasks a drain has. Default: one per tablet of the largest table."
    )
    master: StrictStr | None = Field(None, description=_MASTER)


class ObserverThresholds(Declaration):
    """The thresholds of one observer; null turns a threshold off. A value beyond a threshold is a breach."""

    backlog: Number | None = Field(None, description="A breach: more dirty cells than this.")
    oldest: Length | None = Field(
        600.0,
        json_schema_extra={"default": "10m"},
        description="A breach: a cell that has been ready to run for longer than this.",
    )
    quarantine: Number | None = Field(0, description="A breach: more cells in quarantine than this.")
    failure_rate: Share | None = Field(
        0.5,
        json_schema_extra={"default": "50%"},
        description="A breach: of the runs since the last check, more than this share failed.",
    )


class ThresholdsDeclaration(ObserverThresholds):
    """The thresholds for each observer and for the store."""

    lock_age: Length | None = Field(
        600.0,
        json_schema_extra={"default": "10m"},
        description="A breach: a lock that was set or refreshed longer ago than this.",
    )
    memory: Memory | None = Field(
        None, description="A breach: more memory in use, as a size or as a share of the limit such as 80%."
    )
    workers: Number = Field(0, description="A breach: fewer continuous workers than this.")
    observers: dict[StrictStr, ObserverThresholds] = Field(
        default_factory=dict, description="Other thresholds for some observers, by name."
    )


class MonitorDeclaration(DagDeclaration):
    """``<chain>_monitor``: check the chain against thresholds, and keep a history."""

    schedule: Schedule = Field("* * * * *", description="How often it checks.")
    thresholds: ThresholdsDeclaration = Field(
        default_factory=ThresholdsDeclaration, description="The thresholds; a value beyond one is a breach."
    )
    on_breach: Literal["fail", "warn"] = Field(
        "fail", description="fail: a breach fails the run. warn: the run succeeds and logs a warning."
    )
    history: Length = Field(
        2 * 86_400.0,
        json_schema_extra={"default": "2d"},
        description="Results are kept for this time, for the plots.",
    )
    drain: StrictBool = Field(
        True, description="Start the observers if cells are due and neither a worker nor a drain runs."
    )


class MaintainDeclaration(DagDeclaration):
    """``<chain>_maintain``: resolve stale locks, collect old versions, and maintain the bases of tables."""

    schedule: Schedule = Field("@hourly", description="When it runs.")
    keep: Length = Field(
        3600.0,
        json_schema_extra={"default": "1h"},
        description="Versions that were current within this time are kept.",
    )
    older_than: Length = Field(
        30.0, json_schema_extra={"default": "30s"}, description="Younger locks are skipped."
    )
    parts: Positive = Field(4, description="The number of tasks that share the tablets.")
    base_rate: Size | None = Field(
        None, description="A task writes at most this many bytes a second to bases. Default: no limit."
    )
    base_share: PositiveShare = Field(
        1.0,
        json_schema_extra={"default": "100%"},
        description="A task that maintains bases keeps the store busy for at most this share of the time.",
    )


class Scheduling(Declaration):
    """How Airflow runs a chain; every key has a default."""

    connection: Id = Field("percolator_default", description="The Airflow connection of the store.")
    namespace: StrictStr | None = Field(
        None,
        description="The namespace in the store. Default: that of the connection, or else the chain's name.",
    )
    default_args: DefaultArgs = Field(
        default_factory=dict,
        description="Arguments of all tasks, named as in Airflow: owner, pool, retries, execution_timeout …",
    )
    tags: Texts = Field(
        (), description="Further tags of the DAGs; they always have 'percolator' and the chain's name."
    )
    timezone: Zone = Field("UTC", description="The time zone of the schedules.")
    load: LoadDeclaration = Field(default_factory=LoadDeclaration, description="The DAG that loads files.")
    observe: ObserveDeclaration = Field(
        default_factory=ObserveDeclaration, description="The DAG that runs observers."
    )
    monitor: MonitorDeclaration = Field(
        default_factory=MonitorDeclaration, description="The DAG that monitors the chain."
    )
    maintain: MaintainDeclaration = Field(
        default_factory=MaintainDeclaration, description="The DAG that maintains the store."
    )


def unknown_names(
    declared: Scheduling, tables: Collection[str] | None, observers: Collection[str] | None
) -> Iterator[tuple[Location, str]]:
    """Yield the location and the problem of each unknown table or observer in the block.

    ``tables`` and ``observers`` have the names of the chain's; None if not all are known.
    """
    for position, source in enumerate(declared.load.sources):
        if tables is not None and source.table not in tables:
            mend = did_you_mean(source.table, tables) or f"; the chain has {', '.join(sorted(tables))}"
            place: Location = ("load", "sources", position, "table")
            yield place, f"table {quoted(source.table)} is not declared{mend}"
    for name in declared.monitor.thresholds.observers:
        if observers is not None and name not in observers:
            mend = did_you_mean(name, observers) or f"; it has {', '.join(sorted(observers))}"
            place = ("monitor", "thresholds", "observers", name)
            yield place, f"the chain has no observer {quoted(name)}{mend}"
