"""The views of a chain as they are declared: files with SQL, and the Python functions that these may call.

They are found without the parser of SQL, and functions without running their modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, StrictInt, StrictStr

from percolator_core.observers.explain import validate
from percolator_core.observers.python_file import read_view_functions
from percolator_core.observers.python_observers import Kind, read_modules
from percolator_core.observers.rules import Declaration
from percolator_core.observers.yaml_file import quoted
from percolator_core.views.decorator import marked_function
from percolator_core.views.files import view_digests, view_files

if TYPE_CHECKING:
    from percolator_core.observers.declaration import ChainDeclaration
    from percolator_core.observers.yaml_file import Problems, YamlFile


class FunctionDeclaration(Declaration):
    """The arguments of ``@view_function``, and the name of the function."""

    function: StrictStr
    revision: StrictInt = Field(1, ge=1, le=2**32 - 1)


_VIEWS: Final = Kind(
    "views",
    read_view_functions,
    marked_function,
    "has no function for views; write '@view_function()' above a function",
)


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A function for views; ``function`` is None if its module was not imported."""

    name: str
    revision: int
    file: YamlFile
    function: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class DeclaredViews:
    """The views in a chain's ``folder``, and the functions that they may call, by name.

    ``digests`` has a text by the name of each view and function, which changes with its declaration.
    """

    folder: Path
    functions: Mapping[str, DeclaredFunction] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(view_files(self.folder))


def declared_views(
    folder: Path,
    chain: ChainDeclaration | None,
    chain_file: YamlFile | None,
    import_functions: bool,
    problems: Problems,
) -> DeclaredViews:
    """Find the views of a chain; add each reason why one cannot be read to ``problems``."""
    functions: dict[str, DeclaredFunction] = {}
    if chain is not None and chain_file is not None:
        for _, file, module in read_modules(
            _VIEWS, chain.views, chain_file, folder, import_functions, problems
        ):
            declared = validate(FunctionDeclaration, file, problems)
            if declared is None:
                continue
            name = declared.function
            first = functions.setdefault(
                name.lower(), DeclaredFunction(name, declared.revision, file, getattr(module, name, None))
            )
            if first.file is not file:
                what = f"the name {quoted(name)} is taken by {first.file.label}; rename one of the two"
                problems.add(file.problem(("function",), what))
    digests = {**view_digests(folder), **{f"{one.name}()": str(one.revision) for one in functions.values()}}
    return DeclaredViews(folder, {one.name: one for one in functions.values()}, digests)
