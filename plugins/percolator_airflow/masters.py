"""Whether a Spark master is there, asked before Spark is: that takes a minute to say no."""

from __future__ import annotations

import re
import socket
from typing import Final

from percolator_core.errors import PercolatorError

_LIMIT: Final = 3.0
"""Seconds for a master to answer."""


class MasterUnavailable(PercolatorError):
    """No Spark master answers at that address: start it, or name another one."""


def check_master(master: str | None) -> None:
    """That one of the masters of a ``spark://`` URL takes connections; others are Spark's to judge.

    Raises:
        MasterUnavailable: none does.
    """
    found = re.fullmatch(r"spark://(.+)", master or "")
    if not found:
        return
    problem = ""
    for place in found[1].split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return  # Spark has a sentence for it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _LIMIT).close()
        except OSError as error:
            problem = f"{place}: {error.strerror or error}"
        else:
            return
    raise MasterUnavailable(
        f"no Spark master answers at {master} ({problem}): start it, mend the address, or leave it out "
        "to use the cores of this machine"
    )
