"""A store for each file of tests, a namespace for each test, and an object store."""

from __future__ import annotations

from tests.base.conftest import object_store
from tests.tables.conftest import connect, db, url

__all__ = ["connect", "db", "object_store", "url"]
