"""`View`: a view declared as a class, with columns of models."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar, Final

from percolator_core.errors import ConfigurationError
from percolator_core.tables.model import Table, TableType, definition_of
from percolator_core.views.class_text import CLAUSES, ClassText, class_text
from percolator_core.views.decorator import marked_function
from percolator_core.views.output import view_fields, view_partition
from percolator_core.views.plan import ViewPlan
from percolator_core.views.planner import Parsed, plan_view
from percolator_core.views.problems import ViewRefused
from percolator_core.views.python_functions import ViewFunction

_ANNOTATIONS: Final = ("__annotations__", "__annotate__", "__annotate_func__")
"""The names under which a class body keeps its annotations, in several versions of Python."""

_KEPT: Final = (FunctionType, classmethod, staticmethod, property)
"""The types of attributes that a `View` class keeps as they are."""


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """A view that a class declares: its text, and the class's name, file and line."""

    name: str
    text: ClassText
    title: str
    path: str
    line: int

    @property
    def place(self) -> str:
        """The file, the line and the class, for messages."""
        return f"{self.path}:{self.line}: {self.title}"

    def parsed(self) -> Parsed:
        """Return the parsed SQL. Raises `ViewRefused`."""
        return Parsed(self.text.sql, self.place, self.name)

    def problems(self, refused: ViewRefused) -> list[str]:
        """Return each problem of the SQL with the class and the attribute that it comes from."""
        found = []
        for one in refused.problems:
            attribute = self.text.attributes[min(one.line, len(self.text.attributes)) - 1]
            found.append(f"{self.place}{attribute and '.'}{attribute}: {one.what}")
        return list(dict.fromkeys(found))


class _ViewType(TableType):
    """Turns a `View` class into a model of the rows that it computes."""

    def __new__(mcs, title: str, bases: tuple[type, ...], namespace: dict[str, Any], **arguments: Any) -> Any:
        if not any(isinstance(one, _ViewType) for one in bases):
            return super().__new__(mcs, title, bases, namespace, **arguments)
        caller = sys._getframe(1)  # noqa: SLF001 - the class statement has the line, and the functions
        path, line = caller.f_code.co_filename, caller.f_lineno
        if set(arguments) != {"name"} or bases != (View,):
            raise ConfigurationError(f'{path}:{line}: {title}: write class {title}(View, name="…")')
        declared = _declared(title, arguments["name"], namespace, path, line)
        plan = _planned(declared, {**caller.f_globals, **caller.f_locals})
        fields = view_fields(plan.definition)
        kept = {
            name: one
            for name, one in namespace.items()
            if name not in _ANNOTATIONS and (_is_special(name) or isinstance(one, _KEPT))
        }
        kept["__annotations__"] = {name: annotation for name, (annotation, _) in fields.items()}
        kept.update({name: default for name, (_, default) in fields.items() if default is not ...})
        made: Any = super().__new__(
            mcs, title, bases, kept, name=declared.name, partition=view_partition(plan.definition)
        )
        made._declared, made._is_view = declared, True  # noqa: SLF001 - of the class that is made here
        return made


class View(Table, metaclass=_ViewType):
    """A table that workers keep equal to a query, declared with columns of models.

    Each attribute of a subclass is a column of the view: a column of a model, a predicate, an aggregate
    (`count`, `sum_`, `avg`, `min_`, `max_`), or an expression in SQL (`sql`). If there is an aggregate, the
    other columns are the groups. Three attributes are no columns: ``where`` is a predicate; ``join`` and
    ``left_join`` are equations with the joined model's key on the right side, one or a list::

        class CategoryPrices(View, name="category_prices"):
            category = Product.category
            n = count()
            mean = avg(Product.price)
            where = Product.price.is_not_null()

    A chain finds the class by ``views: MODULE`` in ``chain.yaml``, or gets it in `Chain.of`. The view is the
    same as one with the same SQL in a file. The class is a model of the view's rows, for `Snapshot.find`,
    `Snapshot.select`, predicates, observers and further views.

    Raises ConfigurationError, with the class and the attribute, for what a view cannot be.
    """

    _declared: ClassVar[DeclaredView | None] = None


def declared_view(value: object) -> DeclaredView | None:
    """Return the declaration of a `View` class, None for another object."""
    return value._declared if isinstance(value, type) and issubclass(value, View) else None  # noqa: SLF001


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _declared(title: str, name: str, namespace: Mapping[str, Any], path: str, line: int) -> DeclaredView:
    columns = {
        one: value
        for one, value in namespace.items()
        if not (_is_special(one) or one in CLAUSES or isinstance(value, _KEPT))
    }
    clauses = {one: namespace[one] for one in CLAUSES if one in namespace}
    try:
        text = class_text(name, columns, clauses)
    except ConfigurationError as error:
        what = str(error) if str(error).startswith(".") else f": {error}"
        raise ConfigurationError(f"{path}:{line}: {title}{what}") from None
    return DeclaredView(name, text, title, path, line)


def _planned(declared: DeclaredView, names: Mapping[str, Any]) -> ViewPlan:
    """Return the plan of a view over the tables of its models; functions are those among ``names``."""
    tables = {name: definition_of(model) for name, model in declared.text.models.items()}
    functions = {}
    for value in list(names.values()):
        mark = marked_function(value)
        if mark is not None:
            functions[value.__name__] = ViewFunction.of(value.__name__, value, mark.revision)
    try:
        return plan_view(declared.parsed(), tables, functions)
    except ViewRefused as refused:
        raise ConfigurationError("\n".join(declared.problems(refused))) from None
