"""Whether a Spark master is there, asked before Spark is: that takes a minute to say no."""

from __future__ import annotations

import re
import socket
from typing import Final

from percolator_core.errors import ConfigurationError, PercolatorError

_LIMIT: Final = 3.0
"""Seconds for a master to answer."""


_FORMS: Final = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|yarn|(spark|k8s)://.+")


class MasterUnavailable(PercolatorError):
    """No Spark master answers at that address: start it, or name another one."""


def check_master(master: str | None) -> None:
    """That Spark knows such a master, and that one of those of a ``spark://`` URL takes connections.

    Args:
        master: None is the one that Spark is started with then: that of ``PERCOLATOR_SPARK_MASTER``, if any.

    Raises:
        ConfigurationError: it is none of the forms that Spark has.
        MasterUnavailable: none takes connections.
    """
    from percolator_core.spark.session import default_master

    master = master or default_master()
    if not _FORMS.fullmatch(master):
        raise ConfigurationError(
            f"Spark knows no master {master!r}: write local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        )
    found = re.fullmatch(r"spark://(.+)", master)
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
