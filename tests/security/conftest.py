"""The servers of the core's tests."""

from tests.core.conftest import connect, db, server

__all__ = ["connect", "db", "server"]
