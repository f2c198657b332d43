"""The access rules as docs/how-to/secure.md gives them: the document is what is tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"
PASSWORD = "a-password-for-tests"

_LINE = re.compile(r"^ACL SETUSER (reader|worker|maintenance) (.+)$", re.MULTILINE)
_TOKEN = re.compile(r"\([^)]*\)|\S+")
_NO_RIGHT = ("reset", "on", ">PASSWORD", "resetchannels")


@dataclass(frozen=True)
class Rule:
    """One role's rule: parts, of which one in parentheses is a list of parts of its own."""

    role: str
    parts: tuple[str, ...]

    @property
    def selectors(self) -> bool:
        """True if the rules need a server of version 7.0 or newer."""
        return any(part.startswith(("(", "%")) for part in self.parts)

    def rights(self) -> list[str]:
        """Everything that can be left out, by name; a part of a selector is named with its place."""
        return [name for name, _ in self._without_each()]

    def without(self, right: str) -> Rule:
        """The rule with one right less."""
        return Rule(self.role, next(parts for name, parts in self._without_each() if name == right))

    def words(self, namespace: str) -> list[str]:
        """The arguments of ACL SETUSER for one namespace."""
        text = " ".join(self.parts).replace(">PASSWORD", f">{PASSWORD}")
        return _TOKEN.findall(text.replace("NAMESPACE", quote(namespace, safe="")))

    def _without_each(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for place, part in enumerate(self.parts):
            before, after = self.parts[:place], self.parts[place + 1 :]
            if part in _NO_RIGHT:
                continue
            if not part.startswith("("):
                yield part, (*before, *after)
                continue
            inner = part[1:-1].split()
            for position, one in enumerate(inner):
                left = " ".join(inner[:position] + inner[position + 1 :])
                yield f"{one} of {part}", (*before, f"({left})", *after)


def documented() -> list[Rule]:
    """All rules of the document."""
    return [
        Rule(role, tuple(_TOKEN.findall(rest))) for role, rest in _LINE.findall(DOCUMENT.read_text("utf-8"))
    ]


def rule_for(role: str, *, selectors: bool) -> Rule:
    """The rule of a role for a server that knows selectors, or does not."""
    found = [rule for rule in documented() if rule.role == role]
    for rule in found:
        if rule.selectors == selectors:
            return rule
    assert len(found) == 1
    return found[0]
