"""The project's code on its way to Spark's executors: the chain's folder, and the modules that it names.

Where driver and executors share their files, as with ``local[…]``, executors import from the project's
folder itself. To all others the project travels as an archive: the chain's YAML files, and of the modules and
packages in the project's folder those of the chain's observers and schemas, and what they import, wherever in
their code the import stands. What is installed does not travel: executors need an installation of their own.
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

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

    from percolator_core.observers import Chain

_CODE: Final = "code"
_CHAIN: Final = "chain"
"""The two folders of an archive."""


@dataclass(frozen=True, slots=True)
class Project:
    """A chain and the code of its observers and models; travels to the executors.

    ``names`` are its top-level modules and packages. ``digest`` is another one after any change of them.
    """

    code: str
    chain: str
    names: tuple[str, ...]
    digest: str
    archive: Broadcast[bytes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, chain: Chain, code: Path, spark: SparkContext) -> Project:
        """The project whose modules are found in the folder ``code``, ready to be sent with tasks."""
        code, folder = code.resolve(), chain.path.resolve()
        functions = [observer.function_name for observer in chain.observers.values()]
        names = imported_names(code, [*functions, *chain.schemas])
        files = {
            f"{_CODE}/{path.relative_to(code)}": path for name in names for path in _files_of(code, name)
        }
        files |= {f"{_CHAIN}/{path.name}": path for path in sorted(folder.glob("*.y*ml")) if path.is_file()}
        archive = None if shares_files(spark.master or "") else spark.broadcast(_packed(files))
        return cls(str(code), str(folder), names, _digest(code, files), archive)

    def enter(self) -> Path:
        """Has this process, an executor's, import from the project; returns the chain's folder.

        Spark uses a Python process for one task after another. Modules of another project, or of this one as
        it was before, are forgotten.
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
        """Take the archive back from the executors. No task of it may run any more."""
        from py4j.protocol import Py4JError

        if self.archive is not None:
            # If Spark has ended meanwhile the archive went with it, and the caller has the reason.
            with suppress(Py4JError, OSError):
                self.archive.destroy()

    def _unpacked(self, archive: bytes) -> Path:
        """Where the archive is unpacked, in the folder of the executor that Spark removes with it."""
        from pyspark import SparkFiles

        executor = Path(SparkFiles.getRootDirectory())
        there = executor / f"percolator-{self.digest}"
        if not there.exists():
            coming = Path(tempfile.mkdtemp(prefix="percolator-", dir=executor))
            with zipfile.ZipFile(io.BytesIO(archive)) as packed:
                packed.extractall(coming)
            try:
                # As a whole or not at all: other tasks of the executor do the same at the same time.
                coming.rename(there)
            except OSError:
                shutil.rmtree(coming)
        return there


_ENTERED: Final[list[tuple[str, str]]] = []
"""What this process imports from, if anything yet: folder and digest."""


def shares_files(master: str) -> bool:
    """Whether executors of this Spark master are threads of the driver's own Java, with its files."""
    return master == "local" or master.startswith("local[")


def imported_names(code: Path, needed: Iterable[str]) -> tuple[str, ...]:
    """The top-level modules and packages in the folder that these functions and modules need, sorted.

    Args:
        code: the project's folder.
        needed: each ``module:function`` or ``module``.
    """
    found: set[str] = set()
    coming = {name.partition(":")[0].partition(".")[0] for name in needed}
    while coming:
        name = coming.pop()
        files = list(_files_of(code, name)) if name not in found and _may_be_ours(name) else []
        if files:
            found.add(name)
            coming |= {other for path in files if path.suffix == ".py" for other in _imports(path)}
    return tuple(sorted(found))


def _may_be_ours(name: str) -> bool:
    return name.isidentifier() and name not in LIBRARY and name not in sys.stdlib_module_names


def _files_of(code: Path, name: str) -> Iterator[Path]:
    """The files of a module or package; none of a folder without any module."""
    if (code / f"{name}.py").is_file():
        yield code / f"{name}.py"
    folder = code / name
    if (folder / "pyvenv.cfg").exists() or not any(folder.rglob("*.py")):
        return
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__" and not one.startswith("."))
        yield from (Path(here) / one for one in sorted(files) if not one.startswith("."))


def _imports(path: Path) -> Iterator[str]:
    """The top-level names that a module imports anywhere in its code."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # whoever imports it will say so
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
    """Of names, sizes and times: models may be among the files, and are not read for it."""
    seen = [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in files.items()]
    return hashlib.sha256(repr((str(code), seen)).encode()).hexdigest()[:16]
