"""Loading files into a table with Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from percolator_airflow.connection import airflow_home
from percolator_airflow.masters import check_master
from percolator_airflow.operators.base import Seldom, StoreOperator
from percolator_airflow.operators.values import count, is_nothing
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.observers import Chain
    from percolator_core.spark import LoadReport

_CARRY_ON: Final = "what it wrote stays, and the same load, run again, writes only what is missing"


class LoadOperator(StoreOperator):
    """Loads files into a table of the chain, and writes only what differs.

    May be repeated at any time, also after it was killed. What did not change wakes no observer. Malformed
    records are put aside, and named in the log with the file that has them; they fail no load by themselves.
    The result is the report: how many records were ``read``, ``new``, ``changed``, ``unchanged``,
    ``repeated``, ``deleted`` and ``bad``, and the file ``aside``.

    Args:
        chain, project, conn_id, namespace: as of `StoreOperator`.
        table: one of the chain's.
        sources: a file, folder or pattern, or several; relative ones are looked for from the project.
        format: ``html``, ``warc``, ``jsonl``, ``csv`` or ``parquet``; by the suffixes when None.
        key: the field that holds the row key (jsonl, csv and parquet, into raw tables).
        columns: the fields to load, or these with the names of their columns; None is all.
        base_url: what the row keys of html files start with.
        delimiter, encoding, null_text: of csv.
        delete_missing: delete rows whose keys start so and that the sources no longer have.
        aside: the folder for malformed records, which all executors have to see; by default
            ``percolator/aside/<chain>`` in Airflow's home.
        max_bad: fail when more records than this are malformed.
        master: the Spark master; None is ``PERCOLATOR_SPARK_MASTER``, else all cores of this machine.
        width: transactions that a task of Spark runs at a time.
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
        master: str | None = None,
        width: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(chain=chain, **kwargs)
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
        self.master = master
        self.width = width

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """The report.

        Raises:
            AirflowFailException: the chain, the table, the sources, the connection or Spark cannot work, or
                too many records are malformed.
            AirflowException: the store or the Spark master was away, or the task was killed; a later try may
                go well.
        """
        with self.guarded(_CARRY_ON):
            folder = self.folder()
            with self.hook().get_conn() as db, folder.imported() as chain:
                self._refuse_undeclared(chain)
                chain.create_tables(db)
                arguments = db.connect_arguments()
                report = self._load(arguments["url"], arguments["namespace"], chain)
        self._tell(report)
        return report.to_json()

    def _load(self, url: str, namespace: str, chain: Chain) -> LoadReport:
        try:
            import pyspark  # noqa: F401 - what follows imports it later, in the midst of things

            from percolator_core.spark import TooManyBadRecords, load, open_source
        except ImportError as error:
            raise ConfigurationError(
                f"a load needs Spark ({error}): install percolator-core[spark]"
            ) from None
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
        check_master(self.master)
        self.log.info("loading %d files into %s of %s", len(source.files), self.table, namespace)
        is_time = Seldom()

        def tell(now: Any) -> None:
            if is_time():
                self.log.info("%d of %d tasks, %d records read", now.tasks_done, now.tasks, now.read)

        try:
            return load(
                url,
                namespace,
                self.table,
                source,
                delete_missing=self.delete_missing or None,
                aside=self._aside(chain),
                max_bad=None if is_nothing(self.max_bad) else count("max_bad", self.max_bad),
                master=self.master or None,
                width=self.width,
                progress=tell,
            )
        except TooManyBadRecords as error:
            self._tell(error.report)
            raise AirflowFailException(str(error)) from None

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

    def _tell(self, report: LoadReport) -> None:
        self.log.info(
            "%s: %d records read of %d files: %d new, %d changed, %d unchanged, %d repeated; %d deleted",
            *(report.table, report.read, report.files, report.new, report.changed, report.unchanged),
            *(report.repeated, report.deleted),
        )
        if report.bad:
            self.log.warning(
                "%d malformed records are put aside: %s names each with its reason", report.bad, report.aside
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
