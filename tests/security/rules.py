"""Reads the access rules from docs/how-to/secure.md, so that the tests check the document."""

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
    """The rule of a role: its parts. A part in parentheses is a list of parts."""

    role: str
    parts: tuple[str, ...]

    @property
    def selectors(self) -> bool:
        """True if the rules need a server of version 7.0 or newer."""
        return any(part.startswith(("(", "%")) for part in self.parts)

    def rights(self) -> list[str]:
        """Return the names of all rights that can be left out; one in a selector names the selector."""
        return [name for name, _ in self._without_each()]

    def without(self, right: str) -> Rule:
        """Return the rule without one right."""
        return Rule(self.role, next(parts for name, parts in self._without_each() if name == right))

    def words(self, namespace: str) -> list[str]:
        """Return the arguments of ACL SETUSER for a namespace."""
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
    """Return all rules of the document."""
    return [
        Rule(role, tuple(_TOKEN.findall(rest))) for role, rest in _LINE.findall(DOCUMENT.read_text("utf-8"))
    ]


def rule_for(role: str, *, selectors: bool) -> Rule:
    """Return the rule of a role for a server with or without selectors."""
    found = [rule for rule in documented() if rule.role == role]
    for rule in found:
        if rule.selectors == selectors:
            return rule
    assert len(found) == 1
    return found[0]
