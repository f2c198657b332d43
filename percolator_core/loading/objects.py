"""Objects of an object store as input files: ``s3://BUCKET/PREFIX``, or another URL of ``pyarrow.fs``.

The path of a URL is percent-encoded. Its query has options of the store, such as ``endpoint_override`` and
``region``. Credentials come from the environment, as for the store's own tools: the URLs of objects are part
of messages and of put-aside records.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from percolator_core.base.location import reason_of
from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    from pyarrow import fs


class Object(NamedTuple):
    """An object: its URL, its name relative to the given prefix, and its size in bytes."""

    url: str
    name: str
    size: int


def list_objects(url: str) -> list[Object]:
    """Return the object at ``url``, or the objects whose names begin with it and a slash, sorted by name.

    Objects with a part of their name that begins with a dot are left out, as hidden files are.

    Raises:
        ConfigurationError: there is none, the kind of store is unknown, the URL has a password, or pyarrow is
            not installed.
        StoreUnavailable: the object store refuses or does not answer.
    """
    pyarrow()
    from pyarrow import fs

    try:
        system, path = resolve(url)
        [root] = system.get_file_info([path])
        if root.type == fs.FileType.File:
            return [Object(url, PurePosixPath(path).name, root.size)]
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
    if not names:
        raise ConfigurationError(f"{url!r} does not exist: name an object, or a prefix of objects.")
    return [Object(_below(url, name), name, found[name].size) for name in names]


def open_object(url: str) -> BinaryIO:
    """Open an object for reading. Raises OSError."""
    system, path = resolve(url)
    return cast("BinaryIO", io.BufferedReader(system.open_input_file(path)))


def resolve(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ConfigurationError: the URL has a user or a password.
        ValueError, OSError: the store is unknown, or does not answer.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"The URL of {parts.hostname!r} has a user or a password: put them into the environment, as for "
            "the store's own tools."
        )
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
