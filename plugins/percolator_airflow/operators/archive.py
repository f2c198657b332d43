"""Publish a table, and back up a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.base import StoreOperator, count, is_nothing, seconds
from percolator_core.archive.backup import backup

_CARRY_ON: Final = "earlier versions and backups are unchanged, and the next try starts from the beginning"


class PublishOperator(StoreOperator):
    """Publish a table, as of now, as a version of a Delta Lake table.

    The task may run at any time: each run adds a version. For programs that wait for the version, give the
    task an asset: ``outlets=[Asset("s3://bucket/open/items")]``.

    The result has the fields of `percolator_core.archive.publication.Published`.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`; only the chain's name is used.
        table: the name of the table.
        url: as for `Database.publish`. Airflow shows it, so it must not contain credentials: they come from
            the environment.
        keep: seconds, 0 or more. Before the publication, files are removed if only versions older than this
            have them. None keeps all files.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "table", "url", "keep")

    def __init__(self, *, table: str, url: str, keep: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.url = url
        self.keep = keep

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Publish the table, and return the result.

        Raises:
            AirflowFailException: the chain, the connection, the table, the URL or ``keep`` is invalid, or
                deltalake is not installed.
            AirflowException: the store or the location was unavailable, an earlier transaction is still
                committing, or the task was killed; a retry publishes.
        """
        with self.database(_CARRY_ON) as db:
            keep = None if is_nothing(self.keep) else timedelta(seconds=seconds("keep", self.keep))
            done = db.publish(self.table, self.url, keep=keep)
        self.log.info("version %d, %s: %d rows", done.version, done.mode, done.rows)
        return asdict(done)


class BackupOperator(StoreOperator):
    """Write a backup of a namespace, as of now.

    Run one backup of a namespace at a time. Two backups at the same time do no harm, but share no files.

    The result has the fields of `percolator_core.archive.backup.BackedUp`.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`; only the chain's name is used.
        url: as for `percolator_core.backup`, without credentials, as for `PublishOperator`.
        keep: the number of backups that remain, 1 or more; None removes none.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "url", "keep")

    def __init__(self, *, url: str, keep: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url
        self.keep = keep

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Write the backup, and return the result.

        Raises:
            AirflowFailException: the chain, the connection, the URL or ``keep`` is invalid, pyarrow is not
                installed, or the namespace is being restored.
            AirflowException: the store or the location was unavailable, a file of a base is damaged, an
                earlier transaction is still committing, or the task was killed; a retry backs up.
        """
        with self.database(_CARRY_ON) as db:
            keep = None if is_nothing(self.keep) else count("keep", self.keep)
            done = backup(db, self.url, keep=keep)
        self.log.info("backup %d: %d new files, %d shared", done.number, done.written, done.shared)
        return asdict(done)
