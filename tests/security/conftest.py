"""The servers of the core's tests."""

from tests.servers.fixtures import connect, db, server

__all__ = ["connect", "db", "server"]
