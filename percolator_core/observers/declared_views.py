"""The views of a chain as they are declared: files with SQL, `View` classes, and the functions of views.

They are found without the parser of SQL, and those in Python without running their modules.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, StrictInt, StrictStr

from percolator_core.observers.decorator import declared_in
from percolator_core.observers.explain import validate
from percolator_core.observers.python_file import NotRead, read_views
from percolator_core.observers.python_observers import Kind, read_modules
from percolator_core.observers.rules import Declaration
from percolator_core.observers.yaml_file import YamlFile, quoted
from percolator_core.tables.model import is_view
from percolator_core.views.decorator import MarkedFunction, marked_function
from percolator_core.views.files import VIEWS, view_digests, view_files

if TYPE_CHECKING:
    from percolator_core.observers.declaration import ChainDeclaration
    from percolator_core.observers.yaml_file import Problems
    from percolator_core.tables.model import Table
    from percolator_core.views.plan import ViewPlan
    from percolator_core.views.view import DeclaredView


class FunctionDeclaration(Declaration):
    """The arguments of ``@view_function``, and the name of the function."""

    function: StrictStr
    revision: StrictInt = Field(1, ge=1, le=2**32 - 1)


class ViewDeclaration(Declaration):
    """The name of a view, the name of its class, and a digest of the class's text."""

    view: StrictStr
    class_: StrictStr = Field(alias="class")
    digest: StrictStr


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A function for views; ``function`` is None if its module was not imported."""

    name: str
    revision: int
    file: YamlFile
    function: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class DeclaredClass:
    """A class of a view; ``model`` is None if its module was not imported."""

    name: str
    digest: str
    path: Path
    file: YamlFile
    model: Any


@dataclass(slots=True)
class DeclaredViews:
    """The views in a chain's ``folder``, the classes of views, and the functions that both may call.

    A chain without a folder has classes and functions only.
    """

    folder: Path | None = None
    functions: dict[str, DeclaredFunction] = field(default_factory=dict)
    classes: dict[str, DeclaredClass] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.classes or (self.folder is not None and view_files(self.folder)))

    @property
    def digests(self) -> Mapping[str, str]:
        """By the name of each view and function, a text that changes with its declaration."""
        found = {} if self.folder is None else view_digests(self.folder)
        found.update({one.name: one.digest for one in self.classes.values()})
        return found | {f"{one.name}()": str(one.revision) for one in self.functions.values()}

    def path(self, view: str) -> Path:
        """Return the file of a view."""
        if view in self.classes or self.folder is None:
            return self.classes[view].path
        return self.folder / VIEWS / f"{view}.sql"

    def model(self, plan: ViewPlan) -> type[Table]:
        """Return the model of a view: its class, if it has one."""
        found = self.classes.get(plan.name)
        model: type[Table] = plan.model if found is None or found.model is None else found.model
        return model

    def problem(self, view: str, what: str) -> str:
        """Return a message with the place of a view."""
        if view in self.classes:
            return self.classes[view].file.problem((), what)
        return f"{self.path(view)}:1:1: {what}"

    def add_function(self, file: YamlFile, function: Callable[..., Any] | None, problems: Problems) -> None:
        """Add a function that is declared in a file."""
        found = validate(FunctionDeclaration, file, problems)
        if found is not None:
            if any(name.lower() == found.function.lower() for name in self.functions):
                problems.add(_taken(file, "function", found.function))
            self.functions[found.function] = DeclaredFunction(found.function, found.revision, file, function)

    def add_class(self, path: Path, file: YamlFile, model: Any, problems: Problems) -> None:
        """Add a class that is declared in a file."""
        found = validate(ViewDeclaration, file, problems)
        if found is not None:
            if found.view in self.classes:
                problems.add(_taken(file, "view", found.view))
            self.classes[found.view] = DeclaredClass(found.view, found.digest, path, file, model)


def _taken(file: YamlFile, field_: str, name: str) -> str:
    return file.problem((field_,), f"the name {quoted(name)} is taken; rename one of the two")


def _declared_view(value: object) -> DeclaredView | None:
    """Return the declaration of a `View` class, None for another object."""
    if not (isinstance(value, type) and is_view(value)):
        return None
    from percolator_core.views.view import declared_view  # with the parser of SQL

    return declared_view(value)


def _mark_of(value: object) -> MarkedFunction | DeclaredView | None:
    return marked_function(value) or _declared_view(value)


_VIEWS: Final = Kind(
    "views",
    read_views,
    _mark_of,
    "has no view and no function for views; write a subclass of View, or '@view_function()' above a function",
)


def views_of_chain(
    folder: Path,
    chain: ChainDeclaration | None,
    chain_file: YamlFile | None,
    import_functions: bool,
    problems: Problems,
) -> DeclaredViews:
    """Find the views of a chain; add each reason why one cannot be read to ``problems``."""
    found = DeclaredViews(folder)
    if chain is None or chain_file is None:
        return found
    for path, file, module in read_modules(
        _VIEWS, chain.views, chain_file, folder, import_functions, problems
    ):
        if "function" in file.data:
            found.add_function(file, getattr(module, file.data["function"], None), problems)
        else:
            found.add_class(path, file, getattr(module, file.data["class"], None), problems)
    return found


def views_of_objects(views: Iterable[object], problems: Problems) -> DeclaredViews:
    """Return the views of classes and functions, and of all that modules define."""
    found = DeclaredViews()
    for one in views:
        if isinstance(one, ModuleType):
            inner = views_of_objects(
                [getattr(one, name) for name in declared_in(one, (), _mark_of)], problems
            )
            found.functions.update(inner.functions)
            found.classes.update(inner.classes)
            continue
        function, declared = marked_function(one), _declared_view(one)
        if function is not None and callable(one):
            data = {"function": getattr(one, "__name__", ""), "revision": function.revision}
            found.add_function(_file(function.path, function.line, data), one, problems)
        elif declared is not None:
            digest = _digest(one, declared)
            data = {"view": declared.name, "class": declared.title, "digest": digest}
            path, file = Path(declared.path), _file(declared.path, declared.line, data)
            found.add_class(path, file, one, problems)
        else:
            problems.add(f"Chain.of: views: {one!r} is neither a View nor a function with '@view_function()'")
    return found


def _file(label: str, line: int, data: dict[str, Any]) -> YamlFile:
    made = YamlFile.of_arguments(label, data)
    return YamlFile(made.label, made.data, made.root, line)


def _digest(view: Any, declared: DeclaredView) -> str:
    """Return the digest that a chain in a folder has for the class; without a file, that of the SQL."""
    try:
        found = read_views(view.__module__, Path(inspect.getfile(view)), Path())
    except (NotRead, OSError, TypeError):
        found = None
    for file in () if found is None else found.files:
        if file.data.get("class") == declared.title and file.line == declared.line:
            return str(file.data["digest"])
    return hashlib.sha256(declared.text.sql.encode()).hexdigest()
