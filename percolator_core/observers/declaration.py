"""The models of a chain's YAML: ``chain.yaml``, and one file per observer.

A reference to a column is ``table.column``, split at the **first** dot: a column's name may have dots, a
table's name may not. ``table.*`` means all columns that hold data, so no notify-only ones; under ``observe``
it may be written ``table``, and means the whole row. A duration is a number and one of the units ``ms s m
h``, such as ``50ms``, ``1.5s`` or ``2m``; in the model it is a number of seconds. Unknown keys are refused. A
value of a wrong type is refused, too: ``"8"`` is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticKnownError

from percolator_core.layout.keys import EVERY_COLUMN, check_name, encode_column
from percolator_core.layout.records import MAX_TABLETS
from percolator_core.observers.rules import Declaration, Duration, Length, Size
from percolator_core.observers.scheduling import Scheduling
from percolator_core.observers.yaml_file import describe, quoted

CHAIN_FILE: Final = "chain.yaml"

NAME_PATTERN: Final = r"^[a-z][a-z0-9_]{0,62}$"
COLUMN_PATTERN: Final = r"^[^.]+\..+$"
OBSERVED_PATTERN: Final = r"^[^.]+(\..+)?$"
MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
FUNCTION_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"


def split_column(value: object) -> tuple[str, str]:
    """Return ``("documents", "contents")`` for ``"documents.contents"``. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(
            f"expected table.column, not {describe(value)}; put it in quotes if YAML misreads it"
        )
    table, _, column = value.partition(".")
    if not table or not column:
        raise ValueError(f"{quoted(value)} names no column; write table.column, such as documents.contents")
    _plain(table)
    _plain(column, encode_column)
    return table, column


def _split_observed(value: object) -> tuple[str, str]:
    if isinstance(value, str) and value and "." not in value:
        return _plain(value), EVERY_COLUMN
    return split_column(value)


def _as_list(value: object) -> list[Any]:
    """Accept a single ``table.column`` as a list of one."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(f"expected table.column or a list of them, not {describe(value)}")
    return value


def _at_least_one(columns: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    if not columns:
        raise ValueError("names no column; write the table or the table.column that wakes this observer")
    whole = [table for table, column in columns if column == EVERY_COLUMN]
    if whole and len(whole) < len(columns):
        raise ValueError(
            f"{quoted(whole[0])} is a whole table, the others are columns; their functions get different "
            "arguments, so write two observers"
        )
    return columns


def _named_once(columns: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    _refuse_repeated(f"{table}.{column}" for table, column in columns)
    return columns


def _notify_only(value: object) -> list[Any]:
    if not isinstance(value, list):
        mend = f"; write [{value}]" if isinstance(value, str) else ""
        raise ValueError(f"expected a list of column names, not {describe(value)}{mend}")
    _refuse_repeated(column for column in value if isinstance(column, str))
    return value


def _modules(value: object) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else describe(value)
        raise ValueError(f"expected a module such as schemas.webindex, or a list of them, not {what}")
    _refuse_repeated(module for module in value if isinstance(module, str))
    return value


def _some_tables(tables: dict[str, TableDeclaration], info: ValidationInfo) -> dict[str, TableDeclaration]:
    # If the schemas are invalid, `info.data` has no key "schemas". Then only that problem is reported.
    if not tables and info.data.get("schemas") == ():
        raise PydanticKnownError(
            "too_short", {"field_type": "Dictionary", "min_length": 1, "actual_length": 0}
        )
    return tables


def _refuse_repeated(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{quoted(name)} is named twice; remove one of the two")
        seen.add(name)


_check_table: Final = partial(check_name, "table name")


def _plain(name: str, check: Callable[[str], object] = _check_table) -> str:
    if not name or name != name.strip() or not name.isprintable():
        raise ValueError(
            f"{quoted(name)} is not a name; use printable characters, with no blank at either end"
        )
    try:
        check(name)
    except ValueError as error:
        raise ValueError(f"{error}; shorten it") from None
    return name


def _table_name(name: str) -> str:
    if "." in name:
        raise ValueError(
            f"{quoted(name)} has a dot, and table.column is split at the first dot, so no observer could "
            f"name it; rename it, for instance to {quoted(name.replace('.', '_'))}"
        )
    return _plain(name)


def _column_name(name: str) -> str:
    if name == EVERY_COLUMN:
        raise ValueError("'*' is not a column's name; name each notify-only column")
    return _plain(name, encode_column)


def _version(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value != 1:
        raise ValueError(f"expected 1, not {describe(value)}; this release reads 'version: 1'")
    return value


def _one_or_list(item: dict[str, Any], **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "uniqueItems": True, **more}]})


_COLUMN_SCHEMA: Final = {"type": "string", "pattern": COLUMN_PATTERN, "description": "table.column"}
_OBSERVED_SCHEMA: Final = {
    "type": "string",
    "pattern": OBSERVED_PATTERN,
    "description": "table or table.column",
}

Version = Annotated[int, BeforeValidator(_version), WithJsonSchema({"const": 1})]
Name = Annotated[StrictStr, Field(pattern=NAME_PATTERN)]
TableName = Annotated[StrictStr, AfterValidator(_table_name), Field(pattern=r"^[^.]+$")]
NotifyOnlyName = Annotated[StrictStr, AfterValidator(_column_name)]
Modules = Annotated[
    tuple[Annotated[StrictStr, Field(pattern=MODULE_PATTERN)], ...],
    BeforeValidator(_modules),
    _one_or_list({"type": "string", "pattern": MODULE_PATTERN}, minItems=1),
]
Column = Annotated[tuple[str, str], BeforeValidator(split_column)]
Columns = Annotated[
    tuple[Column, ...], BeforeValidator(_as_list), AfterValidator(_named_once), _one_or_list(_COLUMN_SCHEMA)
]
ObservedColumns = Annotated[
    tuple[Annotated[tuple[str, str], BeforeValidator(_split_observed)], ...],
    BeforeValidator(_as_list),
    AfterValidator(_at_least_one),
    AfterValidator(_named_once),
    _one_or_list(_OBSERVED_SCHEMA, minItems=1),
]


class BaseDeclaration(Declaration):
    """The columnar base of a table: older rows as Parquet files."""

    location: Annotated[StrictStr, Field(min_length=1)] = Field(
        description="A folder or bucket that all clients reach, such as 'file:base' or 's3://BUCKET/PREFIX'. "
        "A relative path starts from the chain's folder."
    )
    cold_after: Length | None = Field(
        None,
        description="Rows that were not changed for this time move to the base. Default: no limit of age.",
    )
    memory: Size | None = Field(
        None,
        description="The table may use this much memory in the store, such as 200MB. Above it, the rows that "
        "were changed longest ago move to the base. Default: no limit.",
    )


class TableDeclaration(Declaration):
    """A raw table of byte cells; or, in an entry with only the key 'base', the base of a typed table."""

    tablets: StrictInt = Field(
        16, ge=1, le=MAX_TABLETS, description="The number of tablets. It cannot be changed later."
    )
    notify_only: Annotated[tuple[NotifyOnlyName, ...], BeforeValidator(_notify_only)] = Field(
        (), description="Columns without data: t.notify marks their cells, and weak observers watch them."
    )
    base: BaseDeclaration | None = Field(None, description="Older rows as Parquet files.")

    @property
    def is_base_only(self) -> bool:
        """True if the entry gives a base and nothing else: the table may be a typed one."""
        return self.model_fields_set == {"base"}


class ChainDeclaration(Declaration):
    """``chain.yaml``: the chain's name and its tables, at least one."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["tables"]}, {"required": ["schemas"]}]}
    )

    version: Version = Field(description="The version of this format.")
    chain: Name = Field(description="The chain's name, and the default namespace in the store.")
    schemas: Modules = Field(
        (),
        description="The module with the models of the typed tables, such as schemas.webindex, or a list of "
        "modules.",
    )
    tables: Annotated[dict[TableName, TableDeclaration], AfterValidator(_some_tables)] = Field(
        default_factory=dict,
        validate_default=True,
        description="The raw tables that the chain's observers watch, read and write, and the bases of typed "
        "tables.",
    )
    observers: Modules = Field(
        (),
        description="The module with functions that '@observer' declares, such as webindex.observers, or a "
        "list of modules. They are observers of the chain beside those of YAML files.",
    )
    views: Modules = Field(
        (),
        description="The module with subclasses of 'View' and functions that '@view_function' declares, such "
        "as webindex.views, or a list of modules. The views are views of the chain beside those in SQL.",
    )
    trace: StrictBool = Field(
        False, description="Runs record what they write, for 'percolator trace'; costs some bytes per cell."
    )
    airflow: Scheduling = Field(
        default_factory=Scheduling, description="How Airflow loads, runs, monitors and maintains the chain."
    )


class RetryDeclaration(Declaration):
    """The retries after a failure, with growing waits; after the last retry the cell goes to quarantine."""

    attempts: StrictInt = Field(
        8, ge=1, le=100, description="After this many failed runs the cell goes to quarantine."
    )
    backoff: Duration = Field(
        0.05, json_schema_extra={"default": "50ms"}, description="The wait after the first failure."
    )
    max_backoff: Duration = Field(10.0, json_schema_extra={"default": "10s"}, description="The longest wait.")

    @model_validator(mode="after")
    def _waits_grow(self) -> RetryDeclaration:
        if self.backoff > self.max_backoff:
            raise ValueError(
                f"backoff ({self.backoff:g}s) is longer than max_backoff ({self.max_backoff:g}s); "
                "raise max_backoff"
            )
        return self


class ObserverDeclaration(Declaration):
    """One observer: the function, the columns that wake it, and the columns it touches."""

    version: Version = Field(description="The version of this format.")
    observer: Name = Field(description="The observer's name, unique in the chain.")
    description: StrictStr = Field("", description="Its purpose, in a sentence; shown in the graph.")
    observe: ObservedColumns = Field(
        description="The table.column whose changes wake it, or a list. A table alone means its whole rows: "
        "one run for a row and commit, whatever columns it wrote."
    )
    mode: Literal["strong", "weak"] = Field(
        "strong",
        description="weak: t.notify on a notify-only column wakes it, without conflicts between writers.",
    )
    function: Annotated[StrictStr, Field(pattern=FUNCTION_PATTERN)] = Field(
        description="module:function, called as process(t, cell), or process(t, change) for whole rows; "
        "imported from the current directory."
    )
    reads: Columns = Field(
        (), description="Other columns that it reads, shown in the graph; 'table.*' means all that hold data."
    )
    writes: Columns = Field(
        (), description="Columns that it writes; 'table.*' means all of a table that hold data."
    )
    retry: RetryDeclaration = Field(
        default_factory=RetryDeclaration, description="The retries after a failure."
    )
    timeout: Duration = Field(
        60.0,
        json_schema_extra={"default": "60s"},
        description="The longest time for a run; a longer run counts as a failure.",
    )
    settle: Duration | None = Field(
        None,
        description="A change waits, at most for this time, while observers run whose writes lead to this "
        "observer, so that one run takes many changes together. Default: 1s if the observer is weak, no wait "
        "if it is strong.",
    )
    feedback: StrictBool = Field(False, description="The observer closes a loop of the chain on purpose.")
    order: Literal["oldest", "most_notified"] = Field(
        "oldest",
        description="most_notified: of its cells, those that its loop notified most often run first. For "
        "weak observers that compute again until nothing changes, as ranks; with the executor hub.",
    )
    executor: Literal["hub", "threads", "processes"] = Field(
        "hub",
        description="threads: for code that waits for anything but the store, such as HTTP or a model; "
        "processes: for long computations.",
    )
    revision: StrictInt = Field(
        1,
        ge=1,
        le=2**32 - 1,
        description="The revision of its code. Raise it when earlier results have to be computed again; "
        "'percolator rerun' then finds the cells that an earlier revision processed.",
    )

    @property
    def is_of_rows(self) -> bool:
        """True if it observes whole rows."""
        return self.observe[0][1] == EVERY_COLUMN

    @model_validator(mode="after")
    def _check_rows(self) -> ObserverDeclaration:
        if self.is_of_rows and self.mode == "weak":
            raise ValueError(
                f"a weak observer watches notify-only columns, not the whole row; name one, such as "
                f"{self.observe[0][0]}.dirty, or write mode: strong"
            )
        return self

    @model_validator(mode="after")
    def _check_order(self) -> ObserverDeclaration:
        if self.order == "most_notified" and (self.mode, self.executor) != ("weak", "hub"):
            raise ValueError("order: most_notified needs mode: weak and executor: hub")
        return self
