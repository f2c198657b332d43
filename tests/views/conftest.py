"""A store for each file of tests, a namespace for each test, and a chain with views."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.worker.conftest import db, namespace, store_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from percolator_core import Database
    from tests.views.test_stored_views import Shop

__all__ = ["db", "namespace", "store_url"]


@pytest.fixture
def shop(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    from tests.views.test_stored_views import Shop

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Shop(db, tmp_path)
    for name in ("view_models", "view_watchers"):
        sys.modules.pop(name, None)
