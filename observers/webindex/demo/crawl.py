"""The demo's documents: a copy of a folder of pages, so that edits do not change the original files.

A file is copied again only after a change of the original, so the edits of earlier runs stay.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from observers.webindex.demo.distributions import write_site
from percolator_core import ConfigurationError, PercolatorError
from percolator_core.loading.records import BadRecord, Record
from percolator_core.spark import Source, open_source

STATE: Final = "demo.json"

COLUMNS: Final = {"contents": "contents"}
"""The loaded columns. The suffix of a file gives its type, so one cell for each document is enough."""


@dataclass(slots=True)
class State:
    """The state that the demo keeps between its runs."""

    corpus: str
    runs: int = 0
    observers: dict[str, int] = field(default_factory=dict)
    """Runs of each observer when the index was built."""
    seconds: float = 0.0
    """Seconds that the build took."""
    copied: dict[str, str] = field(default_factory=dict)
    """The digest of each original file at the time of its copy."""


class Crawl:
    """The folder of the demo: its state, its documents and their base URL.

    Args:
        folder: the folder for documents, store and index.
        docs: a folder of HTML, text and Markdown files; None means the documentation of the installed Python
            distributions.

    Raises:
        ConfigurationError: the folder holds the demo of other documents.
    """

    def __init__(self, folder: Path, docs: Path | None) -> None:
        self.folder = folder
        self.documents = folder / "documents"
        self.base_url = (
            "doc://installed/" if docs is None else f"doc://{quote(docs.resolve().name, safe='')}/"
        )
        self._docs = docs
        self.state = self._read_state("installed" if docs is None else str(docs.resolve()))

    def renew(self, limit: int | None = None) -> int:
        """Update the copy from the original folder; return the number of original files.

        Args:
            limit: the largest number of files to copy; None means all files.

        Raises:
            ConfigurationError: the original folder does not exist or has no documents.
        """
        source = self._docs if self._docs is not None else write_site(self.folder / "installed").folder
        files = open_source(source, "html").files[:limit]
        before, self.state.copied = self.state.copied, {}
        for path, name in files:
            digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
            if before.pop(name, None) != digest:
                target = self.documents / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            self.state.copied[name] = digest
        for name in before:  # deleted in the original folder
            (self.documents / name).unlink(missing_ok=True)
        self.save()
        return len(files)

    def source(self) -> Source:
        """Return all documents as the input of a load."""
        return open_source(self.documents, "html", base_url=self.base_url, columns=COLUMNS)

    def record(self, name: str) -> Record:
        """Read one document in the same way as a load.

        Raises:
            PercolatorError: the document cannot be read.
        """
        path = self.documents / name
        source = replace(
            open_source(path, "html", base_url=self.base_url, columns=COLUMNS),
            files=((str(path.absolute()), name),),
        )
        [[split]] = source.tasks(1)
        record = next(source.reader().read(split))
        if isinstance(record, BadRecord):
            raise PercolatorError(f"{path} cannot be loaded: {record.reason}.")
        return record

    def save(self) -> None:
        """Write the state atomically."""
        state = {name: getattr(self.state, name) for name in State.__slots__}
        draft = self.folder / f"{STATE}.new"
        draft.write_text(json.dumps(state), encoding="utf-8")
        draft.replace(self.folder / STATE)

    def _read_state(self, corpus: str) -> State:
        self.documents.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / STATE
        if not path.exists():
            return State(corpus)
        try:
            state = State(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise ConfigurationError(f"{path} is damaged: start over with --fresh.") from None
        if state.corpus != corpus:
            raise ConfigurationError(
                f"{self.folder} holds the demo of other documents ({state.corpus}): "
                "start over with --fresh, or name another --folder."
            )
        return state
