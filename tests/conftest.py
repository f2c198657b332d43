"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No test is timed: a busy machine takes many times as long for an example, and to make one.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

pytest_plugins = ["tests.servers.fixtures", "tests.spark.fixtures"]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process, and so those started from here.

    Shells have what they start in the background ignore it, and that is inherited.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


LONG = {"test_embedded_users.py", "test_growth.py", "test_hub.py", "test_limits.py"}
"""Files whose tests take long, and test what all versions of the server do alike, or the client alone."""


PATIENCE = 600
"""Seconds after which a slow test counts as hanging: a busy machine takes several times as long."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long on further versions of the server, and give slow tests time.

    Files that have slow tests go first, so that in the end no process waits for another one's file.
    """
    left_out = [item for item in items if _takes_long_on_another_version(item)]
    config.hook.pytest_deselected(items=left_out)
    kept = set(items) - set(left_out)
    items[:] = [item for item in items if item in kept]
    slow = [item for item in items if item.get_closest_marker("slow")]
    for item in slow:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE))
    first = {item.path for item in slow}
    items.sort(key=lambda item: item.path not in first)


def _takes_long_on_another_version(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    versions = {value for value in parameters.values() if isinstance(value, str)}
    if versions.isdisjoint({"newest", "system"}):
        return False
    return item.path.name in LONG or any(item.get_closest_marker(name) for name in ("client", "slow"))
