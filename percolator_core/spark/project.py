"""Send the project's code to Spark's executors: the chain's folder, and its modules.

If driver and executors share their files, as with ``local[…]``, executors import from the project's folder.
Otherwise the driver sends an archive: the chain's YAML files, the modules of its observers and schemas, and
all modules that these import from the project's folder. Installed packages are not sent.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percolator_core.observers.project_modules import LIBRARY, modules_of, shadowed_modules, take_out
from percolator_core.views.files import view_files

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

    from percolator_core.observers import Chain

_CODE: Final = "code"
_CHAIN: Final = "chain"
"""The folders in an archive."""


@dataclass(frozen=True, slots=True)
class Project:
    """A chain and the code of its observers and models, which Spark sends to executors.

    ``names`` are its top-level modules and packages. ``digest`` changes with their files and the chain's.
    """

    code: str
    chain: str
    names: tuple[str, ...]
    digest: str
    archive: Broadcast[bytes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, chain: Chain, code: Path, spark: SparkContext) -> Project:
        """Collect a project from the folder ``code``, and broadcast it if executors need the archive."""
        code, folder = code.resolve(), chain.folder("Spark").resolve()
        functions = [observer.function_name for observer in chain.observers.values()]
        names = imported_names(code, [*functions, *chain.schemas, *chain.view_modules])
        files = {
            f"{_CODE}/{path.relative_to(code)}": path for name in names for path in _files_of(code, name)
        }
        declared = [*sorted(folder.glob("*.y*ml")), *view_files(folder)]
        files |= {f"{_CHAIN}/{path.relative_to(folder)}": path for path in declared if path.is_file()}
        archive = None if shares_files(spark.master or "") else spark.broadcast(_packed(files))
        return cls(str(code), str(folder), names, _digest(code, files), archive)

    def enter(self) -> Path:
        """Make this process of an executor import from the project; return the chain's folder.

        Spark uses one process for several tasks, so modules of other projects and versions are removed first.
        """
        code, chain = Path(self.code), Path(self.chain)
        if self.archive is not None:
            root = self._unpacked(self.archive.value)
            code, chain = root / _CODE, root / _CHAIN
        entered = (str(code), self.digest)
        if _ENTERED and _ENTERED[0] != entered:
            before, _ = _ENTERED.pop()
            take_out(modules_of([before]))
            if before in sys.path:
                sys.path.remove(before)
        if not _ENTERED:
            _ENTERED.append(entered)
            sys.path.insert(0, str(code))
            take_out(shadowed_modules(str(code)))
        return chain

    def leave(self) -> None:
        """Remove the archive from the executors. Call this only after all tasks of the project have ended."""
        from py4j.protocol import Py4JError

        if self.archive is not None:
            # If Spark has ended, the archive is gone, and the caller raises another error: ignore this one.
            with suppress(Py4JError, OSError):
                self.archive.destroy()

    def _unpacked(self, archive: bytes) -> Path:
        """Unpack the archive into a folder that Spark removes at the executor's end; return the folder."""
        from pyspark import SparkFiles

        executor = Path(SparkFiles.getRootDirectory())
        target = executor / f"percolator-{self.digest}"
        if not target.exists():
            draft = Path(tempfile.mkdtemp(prefix="percolator-", dir=executor))
            with zipfile.ZipFile(io.BytesIO(archive)) as packed:
                packed.extractall(draft)
            try:
                # Other tasks of the executor may unpack at the same time, so this is one atomic rename.
                draft.rename(target)
            except OSError:
                shutil.rmtree(draft)
        return target


_ENTERED: Final[list[tuple[str, str]]] = []
"""The folder and the digest of the project from which this process imports; empty before the first one."""


def shares_files(master: str) -> bool:
    """Return True if executors of this Spark master are threads of the driver's Java."""
    return master == "local" or master.startswith("local[")


def imported_names(code: Path, needed: Iterable[str]) -> tuple[str, ...]:
    """Return the needed top-level modules and packages of the project's folder ``code``, sorted.

    Each of ``needed`` is ``module:function`` or ``module``.
    """
    found: set[str] = set()
    pending = {name.partition(":")[0].partition(".")[0] for name in needed}
    while pending:
        name = pending.pop()
        if name in found or name in LIBRARY or name in sys.stdlib_module_names or not name.isidentifier():
            continue
        if files := list(_files_of(code, name)):
            found.add(name)
            pending |= {other for path in files if path.suffix == ".py" for other in _imports(path)}
    return tuple(sorted(found))


def _files_of(code: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module or package; a folder without modules is neither."""
    if (code / f"{name}.py").is_file():
        yield code / f"{name}.py"
    folder = code / name
    if (folder / "pyvenv.cfg").exists() or not any(folder.rglob("*.py")):
        return
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__" and not one.startswith("."))
        yield from (Path(here) / one for one in sorted(files) if not one.startswith("."))


def _imports(path: Path) -> Iterator[str]:
    """Yield the top-level names that a module imports, also inside functions."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # the import of the module will raise this error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _packed(files: dict[str, Path]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name, path in files.items():
            archive.write(path, name)
    return packed.getvalue()


def _digest(code: Path, files: dict[str, Path]) -> str:
    """Hash names, sizes and times. File contents are not read, because a file may be a large model."""
    seen = [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in files.items()]
    return hashlib.sha256(repr((str(code), seen)).encode()).hexdigest()[:16]
