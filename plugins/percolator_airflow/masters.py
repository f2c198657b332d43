"""Where a task runs: its engine, and the Spark master.

A master is checked before Spark starts, because Spark itself waits a minute for a master.
"""

from __future__ import annotations

import re
import socket
from typing import Final, Literal, get_args

from percolator_core.errors import ConfigurationError, PercolatorError

Engine = Literal["spark", "local"]
"""``spark``: in Spark's executors. ``local``: in the process of the Airflow task."""

_LIMIT: Final = 3.0
"""Seconds to wait for a master's answer."""


_FORMS: Final = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|yarn|(spark|k8s)://.+")


class MasterUnavailable(PercolatorError):
    """No Spark master answers at that address: start it, or name another one."""


def check_engine(engine: Engine) -> None:
    """Raise ValueError if there is no such engine."""
    if engine not in get_args(Engine):
        raise ValueError(f"engine is spark or local, not {engine!r}")


def check_master(master: str | None) -> None:
    """Check that Spark is installed, the form of a master, and that one host of a ``spark://`` URL answers.

    Args:
        master: None means the default, ``PERCOLATOR_SPARK_MASTER``, or else all cores of this machine.

    Raises:
        ConfigurationError: Spark is not installed, or has no master of this form.
        MasterUnavailable: no host accepts connections.
    """
    from percolator_core.spark.session import check_pyspark, default_master

    try:
        check_pyspark()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, or write engine: local") from None
    master = master or default_master()
    if not _FORMS.fullmatch(master):
        raise ConfigurationError(
            f"{master!r} is not a Spark master: write local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        )
    found = re.fullmatch(r"spark://(.+)", master)
    if not found:
        return
    problem = ""
    for place in found[1].split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return  # Spark reports it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _LIMIT).close()
        except OSError as error:
            problem = f"{place}: {error.strerror or error}"
        else:
            return
    raise MasterUnavailable(
        f"no Spark master answers at {master} ({problem}): start it, correct the address, or leave it out "
        "to use the cores of this machine"
    )
