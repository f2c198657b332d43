"""Load files into a table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from percolator_airflow.connection import airflow_home
from percolator_airflow.masters import Engine, check_engine, check_master
from percolator_airflow.operators.base import LogInterval, StoreOperator, count, is_nothing
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database
    from percolator_core.loading import LoadReport, Source
    from percolator_core.observers import Chain

_CARRY_ON: Final = "written records stay, and the next try writes only the rest"


class LoadOperator(StoreOperator):
    """Load files into a table of the chain, and write only the differences.

    A load may be repeated at any time, also after a kill. An unchanged record wakes no observer. Malformed
    records are put into the file ``aside``, which the log names. More than ``max_bad`` of them fail the load.
    The result is the report: the numbers of records ``read``, ``new``, ``changed``, ``unchanged``,
    ``repeated``, ``deleted`` and ``bad``, and the file ``aside``.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`.
        table: a table of the chain.
        sources: one or several files, folders or patterns, relative to the project, or URLs of objects.
        format: ``html``, ``warc``, ``jsonl``, ``csv`` or ``parquet``; None means the format of the suffixes.
        key: the field with the row key (jsonl, csv and parquet, into raw tables).
        columns: the fields to load, or a mapping of fields to columns. None means all fields; for html and
            warc it means the default fields of `percolator_core.loading.open_source`.
        base_url: the beginning of the row keys of html files.
        delimiter, encoding, null_text: options for csv, as for `percolator_core.loading.open_source`.
        delete_missing: delete the rows whose keys begin with this text and that are not in the sources.
        aside: the folder for malformed records, which all executors must be able to write; by default
            ``percolator/aside/<chain>`` in Airflow's home.
        max_bad: fail if more records than this are malformed.
        engine: ``spark`` loads with Spark's executors; ``local`` loads in this process, without Spark.
        master: the Spark master; None means ``PERCOLATOR_SPARK_MASTER``, or else all cores of this machine.
        width: concurrent transactions, in each Spark task or in this process.
    """

    template_fields: Sequence[str] = (
        *StoreOperator.template_fields,
        *("table", "sources", "format", "key", "columns", "base_url", "delimiter", "encoding", "null_text"),
        *("delete_missing", "aside", "max_bad", "master"),
    )

    def __init__(
        self,
        *,
        chain: str | PathLike[str],
        table: str,
        sources: str | PathLike[str] | Sequence[str | PathLike[str]],
        format: str | None = None,  # noqa: A002 - Spark's word for it
        key: str | None = None,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        base_url: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        null_text: str = "",
        delete_missing: str | None = None,
        aside: str | PathLike[str] | None = None,
        max_bad: int | None = None,
        engine: Engine = "spark",
        master: str | None = None,
        width: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(chain=chain, **kwargs)
        check_engine(engine)
        if width < 1:
            raise ValueError(f"width is 1 or more, not {width}")
        self.table = table
        self.sources = os.fspath(sources) if isinstance(sources, os.PathLike) else sources
        self.format = format
        self.key = key
        self.columns = columns
        self.base_url = base_url
        self.delimiter = delimiter
        self.encoding = encoding
        self.null_text = null_text
        self.delete_missing = delete_missing
        self.aside = None if aside is None else os.fspath(aside)
        self.max_bad = max_bad
        self.engine = engine
        self.master = master
        self.width = width

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Load, and return the report.

        Raises:
            AirflowFailException: the chain, the table, the sources or the connection is invalid, Spark is
                missing, or too many records are malformed.
            AirflowException: the store or the Spark master was unavailable, or the task was killed; a retry
                may succeed.
        """
        with self.guarded(_CARRY_ON):
            folder = self.folder()
            with self.hook().get_conn() as db, folder.imported() as chain:
                self._refuse_undeclared(chain)
                chain.create_tables(db)
                report = self._load(db, chain)
        self._log_report(report)
        return report.to_json()

    def _load(self, db: Database, chain: Chain) -> LoadReport:
        from percolator_core.loading import TooManyBadRecords, load, open_source

        if self.engine == "spark":
            check_master(self.master)
        source = open_source(
            self.sources,
            self.format or None,
            key=self.key or None,
            columns=_renamed(self.columns),
            base_url=self.base_url or None,
            delimiter=self.delimiter or None,
            encoding=self.encoding or None,
            null_text=self.null_text,
        )
        self.log.info("loading %d files into %s of %s", len(source.files), self.table, db.namespace)
        is_due = LogInterval()

        def log(now: Any) -> None:
            if is_due():
                self.log.info("%d of %d tasks, %d records read", now.tasks_done, now.tasks, now.read)

        settings: dict[str, Any] = {
            "delete_missing": self.delete_missing or None,
            "aside": self._aside(chain),
            "max_bad": None if is_nothing(self.max_bad) else count("max_bad", self.max_bad),
            "width": self.width,
            "progress": log,
        }
        try:
            if self.engine == "local":
                return load(db, self.table, source, **settings)
            return self._with_spark(db, source, settings)
        except TooManyBadRecords as error:
            self._log_report(error.report)
            raise AirflowFailException(str(error)) from None

    def _with_spark(self, db: Database, source: Source, settings: dict[str, Any]) -> LoadReport:
        from percolator_core.spark import load

        at = db.connect_arguments()
        return load(at["url"], at["namespace"], self.table, source, master=self.master or None, **settings)

    def _aside(self, chain: Chain) -> Path:
        if self.aside:
            return Path(self.aside).expanduser()
        return airflow_home() / "percolator" / "aside" / chain.name

    def _refuse_undeclared(self, chain: Chain) -> None:
        declared = [one.name for one in chain.tables]
        if self.table not in declared:
            raise ConfigurationError(
                f"the chain {chain.name!r} declares no table {self.table!r}: it has {', '.join(declared)}"
            )

    def _log_report(self, report: LoadReport) -> None:
        self.log.info(
            "%s: read %d records in %d files: %d new, %d changed, %d unchanged, %d repeated; %d deleted",
            *(report.table, report.read, report.files, report.new, report.changed, report.unchanged),
            *(report.repeated, report.deleted),
        )
        if report.bad:
            self.log.warning(
                "%d malformed records were put aside: %s lists them with the reasons",
                report.bad,
                report.aside,
            )
        if report.kept_back is not None:
            self.log.warning("nothing was deleted: %s", report.kept_back)


def _renamed(columns: Mapping[str, str] | Sequence[str] | str | None) -> dict[str, str] | None:
    if not columns:
        return None
    if isinstance(columns, Mapping):
        return {str(name): str(column) for name, column in columns.items()}
    names = [one.strip() for one in columns.split(",")] if isinstance(columns, str) else columns
    pairs = [str(one).partition("=") for one in names]
    return {field: column or field for field, _, column in pairs}
