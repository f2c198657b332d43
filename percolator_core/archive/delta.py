"""A table in the format of Delta Lake, written by ``deltalake``: a folder of Parquet files and a log.

A call adds one version or none. It writes the version's entry in the log last, and only if no other writer
has written an entry with the same number. Readers ignore files that no entry names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from percolator_core.base.location import local_path
from percolator_core.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

REMOVED: Final = "_deleted"
"""The column of changes that is True for a removed row. No published column has this name."""

_SPILL: Final = 256 << 20
"""The bytes of memory above which a merge writes to temporary files."""


class Overtaken(Exception):
    """Another publication has written a version first, and this one has written none."""


def deltalake() -> Any:
    """Import and return the package deltalake. Raises ConfigurationError if it is not installed."""
    try:
        import deltalake as found
        import pyarrow as pa  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("a publication needs deltalake: pip install deltalake pyarrow") from error
    return found


class OpenTable:
    """The table at a URL, which may not exist yet.

    ``url`` is a path, ``file:PATH`` or ``s3://BUCKET/PREFIX`` with options as for a base
    (`percolator_core.base.location`). ``writer`` names the namespace and the table that are published: the
    log has the timestamp of the last publication of each writer.

    Raises:
        ConfigurationError: deltalake is not installed, or the URL cannot be used.
        StoreUnavailable: the location does not answer, or refuses.
    """

    def __init__(self, url: str, writer: str) -> None:
        self._writer = writer
        self.uri, self._options = uri_and_options(url)
        self._table: DeltaTable | None = None
        self._delta = deltalake()
        self._errors = self._delta.exceptions
        try:
            self._table = self._newest()
        except self._errors.TableNotFoundError:
            pass
        except (self._errors.DeltaError, OSError, ValueError) as error:
            raise self._failed("read", error) from error

    @property
    def version(self) -> int:
        """The number of the newest version, -1 without one."""
        return -1 if self._table is None else self._table.version()

    @property
    def timestamp(self) -> int:
        """The timestamp of the writer's newest publication, 0 without one."""
        return (self._table and self._table.transaction_version(self._writer)) or 0

    def has_schema(self, schema: pa.Schema) -> bool:
        """Return True if the newest version has this schema."""
        import pyarrow as pa

        if self._table is None:
            return False
        found = pa.schema(self._table.schema().to_arrow())
        return [_plain(field) for field in found] == [_plain(field) for field in schema]

    def replace(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], timestamp: int, about: dict[str, str]
    ) -> None:
        """Write a version that has the rows of ``batches`` and no others.

        Raises:
            Overtaken: another version was written since this object was made.
            StoreUnavailable: the files cannot be written.
            Other errors: ``batches`` raised them.
        """
        import pyarrow as pa

        rows = _Batches(batches)
        with self._committing(rows):
            self._delta.write_deltalake(
                self.uri if self._table is None else self._table,
                pa.RecordBatchReader.from_batches(schema, rows),
                mode="overwrite",
                schema_mode="overwrite",
                storage_options=self._options,
                commit_properties=self._properties(timestamp, about),
            )

    def merge(
        self,
        schema: pa.Schema,
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        timestamp: int,
        about: dict[str, str],
    ) -> None:
        """Write a version in which some rows of the previous version are changed, added, or removed.

        The ``batches`` have the column `REMOVED` after the columns of ``schema``, and each key only once.
        Raises as `replace`.
        """
        import pyarrow as pa

        assert self._table is not None, "there is a version to change"
        rows, before = _Batches(batches), self.version
        columns = {_quoted(name): f"new.{_quoted(name)}" for name in schema.names}
        properties = self._properties(timestamp, about)
        with self._committing(rows):
            merger = self._table.merge(
                pa.RecordBatchReader.from_batches(changes_schema(schema), rows),
                " and ".join(f"old.{_quoted(name)} = new.{_quoted(name)}" for name in key),
                source_alias="new",
                target_alias="old",
                max_spill_size=_SPILL,
                commit_properties=properties,
            )
            removed = f"new.{_quoted(REMOVED)}"
            merger.when_matched_delete(removed).when_matched_update(columns).when_not_matched_insert(
                columns, predicate=f"not {removed}"
            ).execute()
            if self.version == before:
                # A merge without changes writes no version, but the timestamp has to advance.
                self._table.create_write_transaction(
                    [], "append", self._table.schema(), commit_properties=properties
                )
                self._table.update_incremental()

    def remove_old_files(self, keep: timedelta) -> None:
        """Remove the files of versions older than ``keep``, and of writers that died.

        Raises StoreUnavailable.
        """
        if self._table is None:
            return
        try:
            self._table.vacuum(
                max(1, round(keep.total_seconds() / 3600)),
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
            )
        except (self._errors.DeltaError, OSError) as error:
            raise self._failed("clean up", error) from error

    def _newest(self) -> DeltaTable:
        table: DeltaTable = self._delta.DeltaTable(self.uri, storage_options=self._options)
        return table

    def _properties(self, timestamp: int, about: dict[str, str]) -> Any:
        return self._delta.CommitProperties(
            custom_metadata={**about, "percolator.timestamp": str(timestamp)},
            # No retry after another commit, which may have changed the same rows.
            max_commit_retries=0,
            app_transactions=[self._delta.Transaction(self._writer, timestamp)],
        )

    @contextmanager
    def _committing(self, rows: _Batches) -> Iterator[None]:
        """Turn the errors of deltalake into ours, and read the version that was written."""
        try:
            yield
        except BaseException as error:
            if rows.error is not None:
                raise rows.error  # noqa: B904 - deltalake's error is about the same failure
            if isinstance(error, self._errors.CommitFailedError):
                raise Overtaken from error
            if isinstance(error, self._errors.DeltaError | OSError):
                raise self._failed("write", error) from error
            raise
        self._table = self._newest()

    def _failed(self, action: str, error: BaseException) -> StoreUnavailable:
        reason = " ".join(str(error).split())[:300].rstrip(". ")
        return StoreUnavailable(
            f"cannot {action} the published table at {self.uri} ({reason}): make room or grant the right, "
            "then publish again"
        )


class _Batches(Iterable["pa.RecordBatch"]):
    """Batches that keep the error of their iteration in ``error``, because deltalake replaces it."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:
            self.error = error
            raise


def changes_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of changed rows, with `REMOVED`; a removed row has nulls outside the key."""
    import pyarrow as pa

    return pa.schema([*(field.with_nullable(True) for field in schema), pa.field(REMOVED, pa.bool_())])


def uri_and_options(url: str) -> tuple[str, dict[str, str]]:
    """Return deltalake's URI and storage options for a URL with the options of a base.

    Raises:
        ConfigurationError: the URL names no folder.
    """
    if (path := local_path(url)) is not None:
        if not url.removeprefix("file:").strip("/"):
            raise ConfigurationError(f"{url!r} names no folder: use file:///FOLDER or s3://BUCKET/PREFIX")
        return path, {}
    found = urlsplit(url)
    host = found.netloc.rpartition("@")[2]
    if not host:
        raise ConfigurationError(f"{url!r} names no bucket: use file:///FOLDER or s3://BUCKET/PREFIX")
    given = dict(parse_qsl(found.query))
    options = {}
    if found.scheme == "s3":
        if found.username:
            options["aws_access_key_id"] = unquote(found.username)
            options["aws_secret_access_key"] = unquote(found.password or "")
        if "region" in given:
            options["aws_region"] = given["region"]
        if "endpoint_override" in given:
            scheme = given.get("scheme", "https")
            options["aws_endpoint_url"] = f"{scheme}://{given['endpoint_override']}"
            options["aws_allow_http"] = str(scheme == "http").lower()
        # With this option, the object store refuses an entry of the log whose number already exists.
        options["conditional_put"] = "etag"
    return f"{found.scheme}://{host}{found.path}", options


def _plain(field: pa.Field) -> tuple[str, Any]:
    """Return the name and type of a field as the log has them; the log has no large types and no views."""
    import pyarrow as pa

    kind = field.type
    if kind in {pa.large_string(), pa.string_view()}:
        kind = pa.string()
    elif kind in {pa.large_binary(), pa.binary_view()}:
        kind = pa.binary()
    return field.name, kind


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
