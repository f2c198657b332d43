"""The servers of the core's tests."""

from tests.core.conftest import connect, db, server, two_phase

__all__ = ["connect", "db", "server", "two_phase"]
