"""A store for each file of tests, and a namespace for each test."""

from __future__ import annotations

from tests.worker.conftest import db, namespace, store_url

__all__ = ["db", "namespace", "store_url"]
