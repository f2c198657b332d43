"""The input of a load: the files, the format, and the options of the reader."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from percolator_core.base.location import is_remote
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.loading.formats import csv_files, json_lines, parquet_files
from percolator_core.loading.formats.compressed import UNREADABLE
from percolator_core.loading.formats.csv_files import CsvReader
from percolator_core.loading.formats.json_lines import JsonLinesReader
from percolator_core.loading.formats.pages import PageReader
from percolator_core.loading.formats.parquet_files import ParquetReader
from percolator_core.loading.formats.warc import WarcReader
from percolator_core.loading.objects import Object, find_objects, list_objects
from percolator_core.loading.records import BadRecord, Origin
from percolator_core.loading.splits import ReadOptions, Split, SplitReader, group_splits, task_size
from percolator_core.loading.typed_records import TypedRecords, typed_records

_READERS: Final[Mapping[str, type[SplitReader]]] = {
    "html": PageReader,
    "warc": WarcReader,
    "jsonl": JsonLinesReader,
    "csv": CsvReader,
    "parquet": ParquetReader,
}

Objects: TypeAlias = Mapping[str, Sequence[Object]]
"""The objects below each URL."""

FORMATS: Final = MappingProxyType({name: reader.suffixes for name, reader in _READERS.items()})
"""Each format, and the suffixes of its files in a folder."""


@dataclass(frozen=True, slots=True)
class Source:
    """Files, and the options to read them; the result of `open_source`."""

    format: str
    files: tuple[tuple[str, str], ...]
    """``(absolute path, path relative to the given folder)``, in the order of the load."""
    unreadable: tuple[BadRecord, ...]
    """Folders that could not be listed."""
    options: ReadOptions
    objects: Objects = field(default_factory=dict)
    """The listings of prefixes; files of this machine are asked for their size later."""

    def reader(self) -> SplitReader:
        """Return the reader of the splits. Spark sends it to executors, so it is small."""
        return _READERS[self.format](self.options)

    def into(self, table: TableHandle) -> Source:
        """Return the source with options for the table.

        Raises:
            ConfigurationError: the table is raw, and this format needs a key. Or the table is typed, and a
                field or a column has no counterpart. Or it belongs to a view.
        """
        table.definition.refuse_of_view()
        options, reader = self.options, _READERS[self.format]
        if not table.is_typed:
            if not reader.page_fields and options.key is None:
                raise ConfigurationError(
                    f"A load of {self.format} needs the field of the row key: name the field with "
                    "--key FIELD (in Python with key)."
                )
            return self
        typed = typed_records(
            table.definition,
            table.version,
            self.format,
            options.key,
            options.columns,
            options.null_text,
            dialect=reader.dialect,
            page_fields=reader.page_fields,
        )
        _check_fields(self.format, self.files[0][0], options, typed)
        return replace(self, options=replace(options, typed=typed))

    def tasks(self, cores: int) -> list[list[Split]]:
        """Divide all files into splits, and group the splits into tasks for this many cores."""
        listed = {found.url: found.size for objects in self.objects.values() for found in objects}
        sizes = [listed[path] if path in listed else _size(path) for path, _ in self.files]
        target = task_size(sizes, cores)
        reader = self.reader()
        splits = (
            split
            for (path, name), size in zip(self.files, sizes, strict=True)
            for split in reader.cut(path, name, size, target)
        )
        return group_splits(splits, target)

    def list_again(self) -> tuple[list[str], list[str]]:
        """Return the URLs of the objects that were replaced, and that were added, since `open_source`.

        Raises StoreUnavailable.
        """
        now = {root: find_objects(root) for root in self.objects}
        before = {found.url: found for objects in self.objects.values() for found in objects}
        suffixes = FORMATS[self.format]
        found = {one.url: one for objects in now.values() for one in objects}
        paths = {path for root in now for path, _ in _walk(root, suffixes, [], now)}
        added = sorted(path for path in paths if path not in before)
        return sorted(path for path in paths & before.keys() if before[path] != found[path]), added


def open_source(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None = None,  # noqa: A002 - Spark's word for it
    *,
    key: str | None = None,
    columns: Mapping[str, str] | None = None,
    base_url: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    null_text: str = "",
) -> Source:
    """Find the input: files, folders (with their subfolders, without hidden files) and glob patterns.

    A path may be the URL of an object or of a prefix, such as ``s3://BUCKET/PREFIX`` (see `objects`). A
    prefix is listed at each call, as a folder is, so that a repeated load finds new objects.

    Args:
        paths: the input. A file that is given by its own path may have any suffix.
        format: ``html``, ``warc``, ``jsonl``, ``csv`` or ``parquet``; by default guessed from the suffixes.
        key: the field with the row key (jsonl, csv, parquet), for raw tables. The key of a typed table comes
            from the fields of its key columns.
        columns: field → table column. Only these fields are loaded. None loads all fields except the key of a
            raw table, each into the column of the same name. Of html, None loads only contents and
            content_type; of warc, also status and location.
        base_url: the prefix of the row keys of html, by default ``doc://<name of the folder>/``.
        delimiter: of csv, by default guessed from the header line.
        encoding: of csv, by default UTF-8, with bytes of other encodings unchanged.
        null_text: the text of a csv field that means no cell in a raw table, or null in a typed table; by
            default the empty text. In a text column that is not nullable, an empty field is an empty text.

    Raises:
        ConfigurationError: there is no such file, the format is not clear, or an argument is not valid.
        StoreUnavailable: an object store refuses or does not answer.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    roots = [root for path in given for root in _expand(os.fspath(path))]
    objects = {root: list_objects(root) for root in roots if is_remote(root)}
    chosen = format or _guess_format(roots, objects)
    if chosen not in FORMATS:
        raise ConfigurationError(f"There is no format {chosen!r}: use one of {', '.join(FORMATS)}.")
    unreadable: list[BadRecord] = []
    files = [found for root in roots for found in _walk(root, FORMATS[chosen], unreadable, objects)]
    if not files:
        raise ConfigurationError(
            f"No {chosen} file ({', '.join(FORMATS[chosen])}) is in {', '.join(roots)}: "
            "name the files, or another format."
        )
    if delimiter is not None and len(delimiter) != 1:
        raise ConfigurationError(f"The delimiter {delimiter!r} is not valid: use one character.")
    options = ReadOptions(
        key=key,
        columns=dict(columns) if columns is not None else None,
        base_url=base_url if base_url is not None else _default_base_url(roots[0]),
        delimiter=delimiter,
        encoding=encoding,
        null_text=null_text,
    )
    if not _READERS[chosen].page_fields:
        _check_key(chosen, files[0][0], options)
    elif chosen == "html":
        _check_names(files)
    return Source(chosen, tuple(dict.fromkeys(files)), tuple(unreadable), options, objects)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # the reader of the file reports the error


def _expand(path: str) -> list[str]:
    """Resolve a path or a pattern to absolute paths; a URL stays as it is."""
    if is_remote(path):
        return [path]
    if os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        if not os.path.isfile(path) and not os.path.isdir(path):  # noqa: PTH112, PTH113
            raise ConfigurationError(f"{path!r} is neither a file nor a folder: name a file or a folder.")
        return [str(Path(path).absolute())]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise ConfigurationError(f"{path!r} does not exist: name a file, a folder or a pattern of files.")
    return [str(Path(item).absolute()) for item in found]


def _guess_format(roots: Iterable[str], objects: Objects) -> str:
    """Return the format of the files, which must all have one format."""
    seen: dict[str, None] = {}
    for root in roots:
        for format_, suffixes in FORMATS.items():
            found = next(_walk(root, suffixes, [], objects), ("", ""))[1]
            if found.lower().endswith(suffixes):
                seen[format_] = None
    if len(seen) != 1:
        found = f"there are files of {' and '.join(seen)}" if seen else "no suffix is known"
        raise ConfigurationError(f"The format is not clear, {found}: name one of {', '.join(FORMATS)}.")
    return next(iter(seen))


def _walk(
    root: str, suffixes: tuple[str, ...], unreadable: list[BadRecord], objects: Objects
) -> Iterator[tuple[str, str]]:
    """Yield the files of a folder that have one of the suffixes, sorted. If ``root`` is a file, yield it.

    The folders that cannot be listed are added to ``unreadable``.
    """
    if root in objects:
        for found in objects[root]:
            if found.url == root or found.name.lower().endswith(suffixes):
                yield found.url, found.name
        return
    if not Path(root).is_dir():
        yield root, Path(root).name
        return

    def note(error: OSError) -> None:
        unreadable.append(BadRecord(Origin(error.filename, "file", 0), f"unreadable: {error.strerror}"))

    for folder, subfolders, names in os.walk(root, onerror=note):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                path = os.path.join(folder, name)  # noqa: PTH118 - pathlib is slow for a million of them
                yield path, os.path.relpath(path, root)


def _default_base_url(root: str) -> str:
    if is_remote(root):
        parts = urlsplit(root)
        return f"doc://{quote(PurePosixPath(unquote(parts.path)).name or parts.netloc, safe='')}/"
    path = Path(root)
    return f"doc://{quote((path if path.is_dir() else path.parent).name, safe='')}/"


def _check_names(files: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigurationError if two pages would be the same row, because of the same relative path."""
    paths: dict[str, str] = {}
    for path, name in files:
        if paths.setdefault(name, path) != path:
            raise ConfigurationError(
                f"{paths[name]} and {path} would be the same row, {name}: name a folder that has both, or "
                "load them one after the other, each with its --base-url."
            )


def _check_key(format_: str, first: str, options: ReadOptions) -> None:
    """Raise ConfigurationError if a field does not exist: each record would be put aside."""
    names = _names_of(format_, first, options)
    wanted = [*([] if options.key is None else [options.key]), *(options.columns or ())]
    missing = [name for name in wanted if name not in names] if names is not None else []
    if missing:
        raise ConfigurationError(f"{first} has no field {missing[0]!r}: it has {', '.join(names or ())}.")


def _check_fields(format_: str, first: str, options: ReadOptions, typed: TypedRecords) -> None:
    """Before the load, raise ConfigurationError if the fields do not fit the typed table."""
    if format_ == "jsonl":
        try:
            problem = typed.unknown(json_lines.first_fields(first))
        except UNREADABLE:
            return
    else:
        names = _names_of(format_, first, options)
        problem = None if names is None else typed.problem(names)
    if problem is not None:
        raise ConfigurationError(
            f"{first} {problem}. Map fields to columns: --columns FIELD=COLUMN,… (in Python columns)."
        )


def _names_of(format_: str, path: str, options: ReadOptions) -> list[str] | None:
    """Return the fields of a file. Return None if its records may differ in fields, or it is unreadable."""
    try:
        if format_ == "csv":
            return csv_files.read_header(path, options.delimiter, options.encoding) or None  # an empty file
        return parquet_files.read_schema(path) if format_ == "parquet" else None
    except LookupError as error:
        raise ConfigurationError(f"The encoding {options.encoding!r} is not valid: {error}.") from None
    except (*UNREADABLE, csv.Error, ValueError):
        return None  # the reader will put the file aside
