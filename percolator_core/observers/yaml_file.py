"""A YAML file with the line of each key, so that every problem can name its line.

``yaml.safe_load`` builds the data; the composed nodes have the lines. Repeated keys are refused, because YAML
itself would silently keep the last value.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from percolator_core.errors import MOST_NAMED, ConfigurationError, abbreviated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

Location = tuple[int | str, ...]
"""The keys and list positions that lead from the top of a file to a value."""

_LONGEST_QUOTE: Final = 60
_MERGE: Final = "tag:yaml.org,2002:merge"
_MOST_MERGED: Final = 100_000
"""A mapping has at most this many lines, with the lines that ``<<`` copy into it. A usual one has dozens."""


class Problems:
    """The problems of a chain, one line each, which are raised together."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._causes: list[object] = []

    def add(self, line: str, cause: object = None) -> None:
        """Add a problem; line breaks and unprintable characters are escaped.

        Of several problems with the same ``cause``, only the first is kept.
        """
        if cause is not None:
            if cause in self._causes:
                return
            self._causes.append(cause)
        self.lines.append(one_line(line))

    def raise_if_any(self) -> None:
        """Raise ConfigurationError with all problems."""
        if self.lines:
            raise ConfigurationError("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The data of a file, and the YAML nodes that it was built from.

    ``line`` is the line of a problem with a field that is not in the file; None names no line.
    """

    label: str
    data: Any
    root: yaml.Node
    line: int | None = None

    @classmethod
    def of_arguments(cls, label: str, data: dict[str, Any]) -> YamlFile:
        """Wrap Python arguments like a file's data. A message about them names the argument, but no line."""
        return cls(label, data, yaml.MappingNode("tag:yaml.org,2002:map", []))

    def problem(self, location: Location, what: str) -> str:
        """Return the text ``file:line: field: what``. If the field is not in the file, leave out the line."""
        line, field = self.find(location)
        place = self.label if line is None else f"{self.label}:{line}"
        return f"{place}: {field}: {what}" if field else f"{place}: {what}"

    def find(self, location: Location) -> tuple[int | None, str]:
        """Return the line of the deepest part of ``location`` in the file, and the field's name."""
        node, line, field = self.root, self.line, ""
        for position, part in enumerate(location):
            found = _child(node, part)
            if found is None:
                if isinstance(node, yaml.MappingNode):
                    for missing in location[position:]:
                        field = _join(field, missing)
                break
            line, node = found
            field = _join(field, part)
        return line, field


def read_yaml(path: Path, problems: Problems) -> YamlFile | None:
    """Read ``path``; if it is not usable, add each error to ``problems`` and return None."""
    label = str(path)
    text = _read_text(path, label, problems)
    if text is None:
        return None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and _merged(root) > _MOST_MERGED:
            problems.add(f"{label}: its '<<' copy more than {_MOST_MERGED:,} lines; write fewer of them")
            return None
        duplicates = [] if root is None else list(_duplicate_keys(root))
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problems.add(_syntax_problem(label, error))
        return None
    except (ValueError, OverflowError) as error:
        problems.add(f"{label}: a value cannot be read: {error}; put it in quotes")
        return None
    except RecursionError:
        problems.add(f"{label}: is nested too deeply; a declaration needs three levels")
        return None
    if root is None or data is None:
        problems.add(f"{label}: the file is empty; start it with 'version: 1', or remove it")
        return None
    if not isinstance(data, dict):
        problems.add(f"{label}:1: expected 'key: value' lines, not {describe(data)}; start with 'version: 1'")
        return None
    for line, first, key in duplicates:
        problems.add(f"{label}:{line}: {key}: is given twice, first in line {first}; remove one of the two")
    return None if duplicates else YamlFile(label, data, root)


def _read_text(path: Path, label: str, problems: Problems) -> str | None:
    if path.exists() and not path.is_file():
        # Reading a pipe could wait without end.
        problems.add(f"{label}: is not a file; remove it or write the declaration there")
        return None
    try:
        raw = path.read_bytes()
    except OSError as error:
        problems.add(f"{label}: cannot be read: {error.strerror}; fix its permissions or remove it")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problems.add(f"{label}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8")
        return None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word; "" if none is close."""
    # A long word is not compared: a comparison of names of 64 KiB would take minutes.
    if not isinstance(word, str) or len(word) > MOST_NAMED:
        return ""
    spelt = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), spelt, n=1, cutoff=0.6)
    return f"; did you mean {spelt[close[0]]!r}?" if close else ""


def quoted(text: str) -> str:
    """Return ``text`` in quotes, shortened if it is long."""
    return repr(abbreviated(text, _LONGEST_QUOTE))


def listed(words: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def describe(value: object) -> str:
    """Describe a value in the terms of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"a truth value ({str(value).lower()})"
    if isinstance(value, (int, float)):
        return f"a number ({str(value)[:_LONGEST_QUOTE]})" if abs(value) < 10**60 else "a huge number"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def one_line(text: str) -> str:
    """Return ``text`` with each run of white space as one blank, and unprintable characters escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )


def _join(field: str, part: int | str) -> str:
    if isinstance(part, int):
        return f"{field}[{part}]"
    return f"{field}.{part}" if field else part


def _child(node: yaml.Node, part: int | str) -> tuple[int, yaml.Node] | None:
    """Return the line and the node of a key or list item."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


def _duplicate_keys(root: yaml.Node) -> Iterator[tuple[int, int, str]]:
    """Yield ``(line, first line, key)`` for each repeated key. A node with aliases is read once."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                pending.append(value)
                if isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    if (key.tag, key.value) in first:
                        yield line, first[key.tag, key.value], key.value
                    else:
                        first[key.tag, key.value] = line


def _merged(root: yaml.Node) -> int:
    """Return the number of lines of the longest mapping, with the lines that its ``<<`` copy into it."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # a mapping may merge itself
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    of_value = size(value)
                    sizes[id(node)] += of_value if key.tag == _MERGE else 1
            elif isinstance(node, yaml.SequenceNode):
                sizes[id(node)] = sum(map(size, node.value))
        return sizes[id(node)]

    size(root)
    return max(sizes.values())


def _syntax_problem(label: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    where = label if mark is None else f"{label}:{mark.line + 1}"
    mend = "fix the indentation, or quote the value"
    if "\\t" in what or "'\t'" in what:
        mend = "indent with blanks, not tabs"
    elif "single document" in str(context):
        mend = "keep one declaration in a file"
    column = "" if mark is None else f" at column {mark.column + 1}"
    return f"{where}: not valid YAML{column}: {what}; {mend}"
