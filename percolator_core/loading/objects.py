"""Objects of an object store as input files: ``s3://BUCKET/PREFIX``, or another URL of ``pyarrow.fs``.

The path of a URL is percent-encoded. Its query has options of the store, such as ``endpoint_override`` and
``region``. Credentials come from the environment, as for the store's own tools: the URLs of objects are part
of messages and of put-aside records.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from percolator_core.base.location import reason_of
from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

T = TypeVar("T")

_REQUEST: Final = 4 * 1024 * 1024
"""Bytes of an object that are read ahead with one request, because each request takes a round trip."""

_SECRET: Final = re.compile(r"pass|secret|token|sig|key|credential_|^auth", re.IGNORECASE)
"""The name of an option that may have a secret."""

_VERSION: Final = frozenset(("etag", "last-modified"))
"""Metadata of an object that tell its versions apart."""

_REFUSED: Final = re.compile(r"ACCESS_DENIED|PERMISSION_DENIED|HTTP status 403|storage class")
"""Part of the message of an error, if perhaps only this object is refused, such as one in an archive."""


class Object(NamedTuple):
    """An object: its URL, its name relative to the given prefix, its size in bytes, and when it was written.

    ``written`` is in nanoseconds since 1970, or None if the store does not say it.
    """

    url: str
    name: str
    size: int
    written: int | None


def list_objects(url: str) -> list[Object]:
    """Return the object at ``url``, or the objects whose names begin with it and a slash, sorted by name.

    If ``url`` ends with a slash, it is a prefix, even if there is also an object with this name. Objects with
    a part of their name that begins with a dot are left out, as hidden files are.

    Raises:
        ConfigurationError: there is none, the kind of store is unknown, the URL has a secret or a ``#``, or
            pyarrow is not installed.
        StoreUnavailable: the object store refuses or does not answer.
    """
    found = find_objects(url)
    if not found:
        raise ConfigurationError(f"{url!r} does not exist: name an object, or a prefix of objects.")
    return found


def find_objects(url: str) -> list[Object]:
    """Return what `list_objects` returns, or an empty list if there is no object. Raises its other errors."""
    pyarrow()
    from pyarrow import fs

    try:
        system, path = resolve(url)
        if not path.endswith("/"):
            [root] = system.get_file_info([path])
            if root.type == fs.FileType.File:
                return [Object(url, PurePosixPath(path).name, root.size, root.mtime_ns)]
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
    except (OSError, ValueError) as error:
        kind = StoreUnavailable if isinstance(error, OSError) else ConfigurationError
        raise kind(
            f"{url!r} cannot be listed ({reason_of(error)}): check the URL, and the credentials in the "
            "environment."
        ) from error
    front = path.rstrip("/") + "/"
    found = {info.path.removeprefix(front): info for info in infos if info.type == fs.FileType.File}
    names = [name for name in sorted(found) if not any(part.startswith(".") for part in name.split("/"))]
    return [Object(_below(url, name), name, found[name].size, found[name].mtime_ns) for name in names]


def open_object(url: str) -> BinaryIO:
    """Open an object for reading from its start to its end; each request reads some MiB.

    Raises as `ObjectFile`, also when the object is read.
    """
    file = ObjectFile(url)
    return cast("BinaryIO", io.BufferedReader(file, max(1, min(file.size, _REQUEST))))


class ObjectFile(io.RawIOBase):
    """One version of an object, for reads at random positions.

    Each read is a request, and another one that checks that the object has not been replaced.

    Raises:
        OSError: the object is missing, was replaced, or cannot be read although the store answers.
        StoreUnavailable: the store does not answer, or refuses the credentials.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._file = self._open()
        self._version = _version(self._file)
        self.size: int = self._file.size()
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as for every file of Python, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read at the position. Return the number of bytes; 0 means the end."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Read from the position to the end."""
        return self._read(self.size)

    def _open(self) -> pa.NativeFile:
        system, path = resolve(self._url)
        try:
            return _answered(self._url, partial(system.open_input_file, path))
        except ValueError as error:  # pyarrow lists names with an empty part, but does not open them
            raise OSError(f"pyarrow cannot open an object of this name: {reason_of(error)}") from error

    def _read(self, size: int) -> bytes:
        size = min(size, self.size - self._position)
        if size <= 0:
            return b""
        data: bytes = _answered(self._url, partial(self._file.read_at, size, self._position))
        # If the object is shorter by now, the rest of the data is whatever was in pyarrow's memory.
        if _version(self._open()) != self._version:
            raise OSError("the object was replaced while it was read: load again")
        self._position += size
        return data


def _version(file: pa.NativeFile) -> tuple[int, dict[str, bytes]]:
    """Return values that differ if the object was replaced, as they were when the file was opened."""
    found: dict[str, bytes] = file.metadata() or {}
    return file.size(), {name: value for name, value in found.items() if name.lower() in _VERSION}


def _answered(url: str, request: Callable[[], T]) -> T:
    """Send a request, which pyarrow repeats for some seconds if needed. Raises as `ObjectFile`."""
    try:
        return request()
    except FileNotFoundError:
        raise
    except OSError as error:
        if not _REFUSED.search(str(error)):
            raise _unavailable(url, error) from error
        _check_bucket(url, error)
        raise


def _check_bucket(url: str, refused: OSError) -> None:
    """Raise StoreUnavailable if the store refuses not only one object, but also its bucket."""
    system, path = resolve(url)
    try:
        system.get_file_info([path.split("/", 1)[0]])
    except OSError as error:
        raise _unavailable(url, refused) from error


def _unavailable(url: str, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"{url!r} cannot be read ({reason_of(error)}): check the object store, and the credentials in the "
        "environment; then load again."
    )


def resolve(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ConfigurationError: the URL has a user, a password or another secret, or a ``#``.
        ValueError, OSError: the store is unknown, or does not answer.
    """
    parts = urlsplit(url)
    # A password that is not encoded may have a slash, so that the @ is in the path.
    if "@" in parts.netloc or (":" in parts.netloc and "@" in url):
        raise ConfigurationError(
            f"The URL of {parts.netloc.rpartition('@')[2].partition(':')[0]!r} has a user or a password: put "
            "them into the environment, as for the store's own tools."
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if _SECRET.search(name):
            raise ConfigurationError(
                f"The option {name!r} of a URL may be a secret: put it into the environment, as for the "
                "store's own tools."
            )
    if parts.fragment:
        raise ConfigurationError(f"{url!r} has a '#': write %23 if it is part of a name.")
    system, root = _file_system(urlunsplit((parts.scheme, parts.netloc, "", parts.query, "")))
    return system, root.rstrip("/") + unquote(parts.path)


@lru_cache(maxsize=16)
def _file_system(root: str) -> tuple[fs.FileSystem, str]:
    """Open the store of a URL without a path. This takes a request or more, so it is done once."""
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(root)
    return system, path


def _below(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
