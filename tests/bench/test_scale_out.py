"""The steps of the page about several machines, with network namespaces as machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scale_out.py"


def _missing() -> str:
    """Return the reason why this machine cannot have machines in it, or ""."""
    absent = [name for name in ("ip", "redis-server", "redis-cli") if shutil.which(name) is None]
    if absent or os.geteuid() != 0:
        return f"NOT TESTED: needs root, {', '.join(absent) or 'and its rights'}"
    name = f"pc{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "NOT TESTED: no network namespaces here"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    for group in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        if (group / "cpu.cfs_quota_us").exists() or (group / "cgroup.controllers").exists():
            return "" if os.access(group, os.W_OK) else "NOT TESTED: control groups cannot be changed"
    return "NOT TESTED: no control groups of the processor"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_a_chain_moves_from_one_machine_to_two() -> None:
    """Each row is processed once, by workers before and after the move, and after a load by Spark."""
    if reason := _missing():
        pytest.skip(reason)
    command = [sys.executable, str(SCRIPT), "--machines", "2", "--share", "2", "--rows", "200", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1400)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["machines"] == 2
    assert found["loaded"] > 0
