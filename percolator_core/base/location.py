"""Locations for the files of bases and backups: folders of a local file system, or prefixes of buckets.

A file is written once, under a name that no other file gets, and is never changed or renamed: object stores
have no rename. A reader learns the name only after the file is complete and synced, so it never finds a part
of a file. If the writer dies, no manifest names the file, and maintenance removes it.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import BaseDamaged, ConfigurationError, StoreUnavailable
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Location:
    """A folder of files, named by a URL.

    ``url`` is a path, ``file:PATH``, ``s3://BUCKET/PREFIX`` or another URL of ``pyarrow.fs``. A relative path
    is below the current directory. The query of the URL has options of an object store, such as
    ``endpoint_override``. Credentials come from the environment, as for the object store's own tools.

    Raises:
        ConfigurationError: pyarrow is not installed, or does not know the URL.
    """

    def __init__(self, url: str) -> None:
        pa = pyarrow()
        from pyarrow import fs

        self.url = url
        try:
            if (path := local_path(url)) is not None:
                self._file_system, self._path = fs.LocalFileSystem(), path
            else:
                self._file_system, self._path = fs.FileSystem.from_uri(url)
            reason = "" if self._path.strip("/") else "it names no folder"
        except (pa.ArrowException, ValueError) as error:
            reason = str(error)
        if reason:
            raise ConfigurationError(
                f"{self.shown!r} is no usable location ({reason}): use file:///FOLDER, s3://BUCKET/PREFIX or "
                "another URL of pyarrow.fs"
            )

    @property
    def shown(self) -> str:
        """The URL for messages: without its query, user and password, which may be secret."""
        front, separator, rest = self.url.partition("?")[0].partition("://")
        return front + separator + rest.rpartition("@")[2]

    @property
    def absolute_url(self) -> str:
        """The URL with an absolute path."""
        return (self.url if self.folder is None else f"file://{self._path}").rstrip("/")

    @property
    def folder(self) -> str | None:
        """The path of the folder on this machine's file system; None for an object store."""
        return self._path.rstrip("/") if self._file_system.type_name == "local" else None

    def __repr__(self) -> str:
        return f"Location({self.shown!r})"

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        """Write the file ``name`` in a ``with`` statement; after the statement it is complete and on disk.

        Folders in ``name`` are created. After an exception the incomplete file is removed. If it cannot be
        removed, maintenance removes it later, since no manifest names it.

        Raises:
            StoreUnavailable: the disk is full, or the bucket refuses or does not answer.
        """
        path = self._at(name)
        with self._reported("write", name):
            if self.folder is not None:
                self._file_system.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._file_system.open_output_stream(path)
            try:
                yield stream
                stream.close()
                self._sync(path)
            except BaseException:
                self._discard(stream, path)
                raise

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reads at random positions.

        Raises:
            FileNotFoundError: there is no such file.
            StoreUnavailable: the file system or object store does not answer, or refuses.
        """
        with self._reported("read", name):
            found: pa.NativeFile = self._file_system.open_input_file(self._at(name))
            return found

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises as `open`."""
        with self._reported("read", name), self._file_system.open_input_stream(self._at(name)) as stream:
            content: bytes = stream.read()
            return content

    def read_verified(self, name: str, is_right: Callable[[bytes], bool]) -> bytes:
        """Return the content of a file that a manifest or the store names; ``is_right`` checks the content.

        Raises:
            BaseDamaged: the file is missing, or ``is_right`` returned False.
            StoreUnavailable: as `open`.
        """
        try:
            content = self.read(name)
        except FileNotFoundError:
            raise BaseDamaged(self.shown, name, "it is missing") from None
        if not is_right(content):
            raise BaseDamaged(self.shown, name, "its checksum is wrong")
        return content

    def read_at(self, name: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of a file from position ``start``, fewer at the end. Raises as `open`."""
        with self._reported("read", name), self._file_system.open_input_file(self._at(name)) as file:
            content: bytes = file.read_at(size, min(start, file.size()))
            return content

    def names(self) -> list[str]:
        """Return the names of all files, with their folders. Raises StoreUnavailable."""
        return sorted(self.files())

    def files(self, folder: str = "") -> dict[str, float]:
        """Return when each file in and below a folder was written, in seconds since 1970, by name.

        Raises StoreUnavailable.
        """
        from pyarrow import fs

        path = self._at(folder).rstrip("/")
        with self._reported("list", folder):
            found = self._file_system.get_file_info(
                fs.FileSelector(path, allow_not_found=True, recursive=True)
            )
        front = len(self._path.rstrip("/")) + 1
        return {one.path[front:]: one.mtime.timestamp() for one in found if one.type == fs.FileType.File}

    def remove(self, name: str) -> None:
        """Remove a file; do nothing if there is none. Raises StoreUnavailable."""
        with self._reported("remove", name), suppress(FileNotFoundError):
            self._file_system.delete_file(self._at(name))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all its files; do nothing if there is none. Raises StoreUnavailable."""
        with self._reported("remove", folder), suppress(FileNotFoundError):
            self._file_system.delete_dir(self._at(folder))

    def check(self) -> None:
        """Check that files can be written, found, read and removed here.

        Raises:
            ConfigurationError: they cannot.
        """
        folder, content = f"probe-{uuid.uuid4().hex}", b"This file tests the rights; it may be removed."
        name = f"{folder}/probe"
        try:
            with self.create(name) as file:
                file.write(content)
            right = name in self.files(folder) and self.read(name) == content
            self.remove_folder(folder)
        except (StoreUnavailable, FileNotFoundError) as error:
            raise ConfigurationError(f"{self.shown!r} is no usable location: {error}") from error
        if not right:
            raise ConfigurationError(
                f"{self.shown!r} is no usable location: a file that was written there is not found, or its "
                "content has changed"
            )

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _sync(self, path: str) -> None:
        """Sync a local file and its folders to the disk. A finished upload is durable by itself."""
        if self.folder is None:
            return
        # This file may be the first one in its folders, which then have to be synced, too.
        above = [one for one in Path(path).parents if one.is_relative_to(self._path)]
        for one in (Path(path), *above, Path(self._path).parent):
            descriptor = os.open(one, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _discard(self, stream: Any, path: str) -> None:
        """End the upload of an incomplete file, then remove the file."""
        with suppress(OSError):  # on a full disk the rest of the buffer cannot be written
            stream.close()
        with suppress(OSError):
            self._file_system.delete_file(path)

    @contextmanager
    def _reported(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(
                f"cannot {action} {name or 'the files'} at {self.shown} ({reason_of(error)}): "
                "make room or grant the right, then try again"
            ) from error


def is_remote(url: str) -> bool:
    """Return True if ``url`` names something in an object store, not a path of this machine."""
    return not url.startswith("file:") and _SCHEME.match(url) is not None


def reason_of(error: BaseException) -> str:
    """Return the first line of a file system's message, for a sentence that goes on."""
    return str(error).splitlines()[0].rstrip(". ")


def local_path(url: str, folder: Path | None = None) -> str | None:
    """Return the absolute path that a URL names on this machine; None if it names an object store.

    A relative path is below ``folder``, by default the current directory.
    """
    if is_remote(url):
        return None
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return str(Path(folder or "", path).absolute())
