"""A client process with a bug: ``python broken_client.py BUG``, in place of the real one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence

from percolator_core import scripts
from percolator_core.base.bases import Bases
from percolator_core.base.reader import RowSetReader, Span
from percolator_core.base.tablet import TabletBase
from percolator_core.errors import BaseDamaged, CommitUndetermined, StoreUnavailable
from percolator_core.layout.records import Lock
from percolator_core.scripts import Script
from percolator_core.scripts.replies import Fate
from percolator_core.transaction.lock_resolver import Resolver
from percolator_core.transaction.transaction import Transaction
from percolator_torture.clients import client_process


def change_script(changed_one: str, before: str, after: str) -> None:
    """Have the server run another version of a script."""
    assemble = scripts._assemble

    def changed(name: str, shebang: bool, replaced: Mapping[str, str]) -> Script:
        made = assemble(name, shebang, replaced)
        if name != changed_one:
            return made
        source = made.source.decode()
        assert before in source, f"{changed_one}.lua has changed: write the bug anew"
        source = source.replace(before, after)
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode()
        return Script(changed_one, source.encode(), sha)

    scripts._assemble = changed


def ignore_newer_commits() -> None:
    """A prewrite does not look for commits since its snapshot: lost updates."""
    change_script("prewrite", "if version and version_times(version) > start_ts then", "if false then")


def report_unknown_as_failed() -> None:
    """A commit whose reply is lost is reported as failed."""
    commit = Transaction.commit

    def lying(self: Transaction) -> int:
        try:
            return commit(self)
        except CommitUndetermined as error:
            raise StoreUnavailable("nothing was committed, or so this client says") from error

    Transaction.commit = lying  # type: ignore[method-assign]


def roll_back_what_committed() -> None:
    """A lock whose primary is committed is removed, and not rolled forward: half of a transaction is lost."""
    fates = Resolver.fates

    def forgetful(self: Resolver, locks: Iterable[Lock]) -> dict[int, Fate]:
        found = fates(self, locks)
        return {
            start: Fate("rolled back") if fate.state == "committed" else fate for start, fate in found.items()
        }

    Resolver.fates = forgetful  # type: ignore[method-assign]


def leave_out_the_base() -> None:
    """A cell that only the base has is taken for absent."""
    Bases.versions = lambda self, wanted: [[None] * len(one.columns) for one in wanted]  # type: ignore[method-assign]


def answer_without_lost_files() -> None:
    """A row set whose file is missing counts as empty."""
    find = RowSetReader.find

    def forgiving(self: RowSetReader, key: bytes) -> list[Span]:
        try:
            return find(self, key)
        except BaseDamaged:
            return []

    RowSetReader.find = forgiving  # type: ignore[method-assign]
    values = TabletBase.values

    def without_values(self: TabletBase, key: bytes, columns: Sequence[bytes]) -> list[bytes | None]:
        try:
            return values(self, key, columns)
        except BaseDamaged:
            return [None] * len(columns)

    TabletBase.values = without_values  # type: ignore[method-assign]


BUGS = {
    bug.__name__: bug
    for bug in (
        ignore_newer_commits,
        report_unknown_as_failed,
        roll_back_what_committed,
        leave_out_the_base,
        answer_without_lost_files,
    )
}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    client_process.main()
