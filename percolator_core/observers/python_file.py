"""Read the declarations of a Python module without running it: ``@observer`` and others, and `View` classes.

A decorator is found above a ``def`` at the top level of the module. Its arguments are literals, names of
constants of the module, or columns of models such as ``Offer.price``. For a column the class of the model is
searched, also in the modules from which it is imported, because the class has the table's name. So a chain
with observers in Python is read like one with YAML files, by a scheduler or a page that has none of the
project's packages.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

from percolator_core.observers.yaml_file import YamlFile, quoted

_LIBRARY: Final = "percolator_core"
_CONSTANT: Final = ast.Assign | ast.AnnAssign
_DEEPEST: Final = 20
"""The most imports that are followed from a name to its definition."""


class NotRead(ValueError):
    """A module or an argument cannot be read without running code; ``line`` is 0 for the whole file."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


class Declarations(NamedTuple):
    """The declarations of a module.

    ``files`` have those that can be read, as the data of YAML files with lines. ``unread`` has the reasons
    why the others cannot. ``names`` are the functions and classes of both.
    """

    files: list[YamlFile]
    unread: list[NotRead]
    names: set[str]


def find_file(module: str, folder: Path) -> Path | None:
    """Return the file of a module, None if there is none.

    The chain's ``folder`` and all folders above it are searched, because the project is one of them; then the
    current folder and the folders of `sys.path`.
    """
    *above, last = module.split(".")
    names = (Path(*above, f"{last}.py"), Path(*above, last, "__init__.py"))
    places = [folder, *folder.absolute().parents, Path.cwd(), *(Path(one) for one in sys.path if one)]
    return next((place / one for place in places for one in names if (place / one).is_file()), None)


Declare: TypeAlias = "Callable[[_Module, ast.FunctionDef | ast.AsyncFunctionDef, ast.Call], YamlFile]"
"""Makes the data of a decorated function. Raises NotRead."""


def read_observers(module: str, file: Path, folder: Path) -> Declarations:
    """Read the observers of a module. Raises NotRead, as `_read`."""
    return _read(_Module.of(module, file, folder), "observer", _observer)


def read_views(module: str, file: Path, folder: Path) -> Declarations:
    """Read the functions for views, and the `View` classes, of a module. Raises NotRead, as `_read`."""
    source = _Module.of(module, file, folder)
    found = _read(source, "view_function", _view_function)
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and any(source.is_of_library(one, "View") for one in node.bases):
            found.names.add(node.name)
            try:
                found.files.append(_view(source, node))
            except NotRead as error:
                found.unread.append(error)
    return found


def _read(source: _Module, decorated: str, declare: Declare) -> Declarations:
    """Read the declarations in a module, in their order. ``decorated`` is the decorator's name.

    Raises NotRead if the file cannot be read, or is no Python.
    """
    found = Declarations([], [], set())
    for node in source.tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and source.is_of_library(decorator.func, decorated):
                found.names.add(node.name)
                try:
                    found.files.append(declare(source, node, decorator))
                except NotRead as error:
                    found.unread.append(error)
    return found


def _observer(module: _Module, node: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> YamlFile:
    data: dict[str, Any] = {"version": 1, "observer": node.name, "function": f"{module.name}:{node.name}"}
    description = (ast.get_docstring(node) or "").partition("\n")[0]
    if description:
        data["description"] = description
    columns = ast.List(elts=call.args, ctx=ast.Load(), lineno=call.lineno, col_offset=0)
    return _file(module, node, data, {"observe": columns, **_arguments(call)})


def _view_function(module: _Module, node: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> YamlFile:
    if call.args:
        raise NotRead(call.args[0].lineno, "the arguments of '@view_function' have names; write revision=2")
    return _file(module, node, {"function": node.name}, _arguments(call))


def _view(module: _Module, node: ast.ClassDef) -> YamlFile:
    """Return the name of a view, its class, and a digest of the text of the class and of its constants."""
    name = _arguments(node).get("name")
    if name is None:
        raise NotRead(node.lineno, f'the view has no name; write class {node.name}(View, name="…")')
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    constants = [module.names[one] for one in sorted(used & module.names.keys())]
    texts = [module.text(one) for one in (node, *constants) if isinstance(one, ast.ClassDef | _CONSTANT)]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return _file(module, node, {"class": node.name, "digest": digest}, {"view": name})


def _arguments(call: ast.Call | ast.ClassDef) -> dict[str, ast.expr]:
    values: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise NotRead(
                keyword.value.lineno, "'**' cannot be read without running code; name each argument"
            )
        values[keyword.arg] = keyword.value
    return values


def _file(
    module: _Module,
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    data: dict[str, Any],
    values: dict[str, ast.expr],
) -> YamlFile:
    """Add the values of arguments to the data of a function, and return it as that of a YAML file."""
    lines = dict.fromkeys(data, (node.lineno, _scalar(node.lineno)))
    for argument, value in values.items():
        key = "observer" if argument == "name" else argument
        data[key], root = module.value(value, ".*" if argument in {"reads", "writes"} else "")
        lines[key] = (value.lineno, root)
    pairs = [(_scalar(line, key), root) for key, (line, root) in lines.items()]
    return YamlFile(str(module.file), data, yaml.MappingNode(_MAP, pairs), node.lineno)


@dataclass(slots=True)
class _Module:
    """The syntax tree of a module; ``names`` has the top-level statement that defines each name.

    ``lines`` are those of the file.
    """

    name: str
    file: Path
    folder: Path
    tree: ast.Module
    lines: list[bytes] = field(default_factory=list)
    names: dict[str, ast.stmt] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, file: Path, folder: Path) -> _Module:
        try:
            source = file.read_bytes()
            tree = ast.parse(source)
        except SyntaxError as error:
            raise NotRead(error.lineno or 0, f"is no Python: {error.msg}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise NotRead(0, f"cannot be read: {error}") from None
        return cls(name, file, folder, tree, source.splitlines(), dict(_definitions(tree.body)))

    def text(self, node: ast.stmt) -> str:
        """Return the lines of a statement."""
        return b"\n".join(self.lines[node.lineno - 1 : node.end_lineno]).decode(errors="replace")

    def is_of_library(self, node: ast.expr, name: str) -> bool:
        """Return True for an object of this library, under whatever name it is imported."""
        place = self._place(node)
        return place is not None and place[0].partition(".")[0] == _LIBRARY and place[1] == name

    def value(self, node: ast.expr, of_table: str) -> tuple[Any, yaml.Node]:
        """Return the value of an argument, and a YAML node with its lines.

        A model means its table, with ``of_table`` behind the name.
        Raises NotRead for anything else than literals, constants, models and their columns.
        """
        if isinstance(node, ast.List | ast.Tuple):
            pairs = [self.value(one, of_table) for one in node.elts]
            children = [_at(root, one.lineno) for one, (_, root) in zip(node.elts, pairs, strict=True)]
            return [one for one, _ in pairs], yaml.SequenceNode(_SEQ, children, _mark(node.lineno))
        if isinstance(node, ast.Dict) and all(isinstance(one, ast.Constant) for one in node.keys):
            keys = [one for one in node.keys if isinstance(one, ast.Constant)]
            found = [self.value(one, "") for one in node.values]
            data = {key.value: one for key, (one, _) in zip(keys, found, strict=True)}
            nodes = [
                (_scalar(key.lineno, str(key.value)), root)
                for key, (_, root) in zip(keys, found, strict=True)
            ]
            return data, yaml.MappingNode(_MAP, nodes, _mark(node.lineno))
        try:
            return ast.literal_eval(node), _scalar(node.lineno)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        text = self._name_of(node, of_table)
        if text is not None:
            return text, _scalar(node.lineno)
        if isinstance(node, ast.Name):
            constant = self.names.get(node.id)
            if isinstance(constant, ast.Assign | ast.AnnAssign) and constant.value is not None:
                return self.value(constant.value, of_table)
        raise NotRead(
            node.lineno,
            f"{quoted(ast.unparse(node))} cannot be read without running code; write text such as "
            "'offers.price', a constant of this module, or a column of a model",
        )

    def _name_of(self, node: ast.expr, of_table: str) -> str | None:
        """Return ``offers.price`` for ``Offer.price``, and the table's name for ``Offer``."""
        table = self._table(node)
        if table is not None:
            return table + of_table
        if isinstance(node, ast.Attribute):
            table = self._table(node.value)
            return None if table is None else f"{table}.{node.attr}"
        return None

    def _table(self, node: ast.expr) -> str | None:
        """Return the name of the table of a model, None if the node is no model."""
        place, module = self._place(node), self
        for _ in range(_DEEPEST):
            if place is None:
                return None
            owner, name = place
            if owner != module.name:
                file = find_file(owner, self.folder)
                if file is None:
                    return None
                try:
                    module = _Module.of(owner, file, self.folder)
                except NotRead:
                    return None
            definition = module.names.get(name)
            if isinstance(definition, ast.ClassDef):
                return _table_name(definition)
            place = module._imported(name)  # noqa: SLF001 - of the same class
        return None

    def _place(self, node: ast.expr) -> tuple[str, str] | None:
        """Return the module and the name of an object that the node names."""
        if isinstance(node, ast.Name):
            return self._imported(node.id) or (self.name, node.id)
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return None if above is None else (above, node.attr)
        return None

    def _dotted(self, node: ast.expr) -> str | None:
        """Return the full name of a module that the node names."""
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return None if above is None else f"{above}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        imported = self.names.get(node.id)
        if isinstance(imported, ast.Import):
            return next((one.name for one in imported.names if one.asname == node.id), node.id)
        if isinstance(imported, ast.ImportFrom):
            return ".".join(self._imported(node.id) or ())
        return None

    def _imported(self, name: str) -> tuple[str, str] | None:
        """Return the module and the name from which a name is imported with ``from``."""
        node = self.names.get(name)
        if not isinstance(node, ast.ImportFrom):
            return None
        package = self.name.split(".")
        if node.level:
            kept = len(package) - node.level + (self.file.name == "__init__.py")
            package = package[: max(0, kept)]
        else:
            package = []
        owner = ".".join([*package, *([node.module] if node.module else [])])
        original = next(one.name for one in node.names if name in {one.asname, one.name})
        return owner, original


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.If):  # such as TYPE_CHECKING
            yield from _definitions([*node.body, *node.orelse])


def _table_name(node: ast.ClassDef) -> str | None:
    for keyword in node.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


_MAP: Final = "tag:yaml.org,2002:map"
_SEQ: Final = "tag:yaml.org,2002:seq"
_STR: Final = "tag:yaml.org,2002:str"


def _mark(line: int) -> yaml.Mark:
    return yaml.Mark("", 0, line - 1, 0, None, 0)


def _scalar(line: int, value: str = "") -> yaml.Node:
    return yaml.ScalarNode(_STR, value, _mark(line))


def _at(node: yaml.Node, line: int) -> yaml.Node:
    """Give the node of a list's item its line."""
    node.start_mark = _mark(line)
    return node
