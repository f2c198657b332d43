"""Percolator's chains in Airflow: schedules, operators and pages.

>>> from percolator_airflow import chain_dags
>>> globals().update(chain_dags("observers/webindex"))

Airflow finds the rest by itself: the connection type ``percolator``, ``@task.percolator``, assets
``percolator://…``, and the pages.
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_airflow.assets import dirty_asset, table_asset
    from percolator_airflow.dags.factory import chain_dags
    from percolator_airflow.hook import PercolatorHook
    from percolator_airflow.operators.archive import BackupOperator, PublishOperator
    from percolator_airflow.operators.drain import DrainOperator
    from percolator_airflow.operators.load import LoadOperator
    from percolator_airflow.operators.maintenance import (
        CollectGarbageOperator,
        MaintainBasesOperator,
        ResolveLocksOperator,
    )
    from percolator_airflow.operators.monitor import MonitorOperator
    from percolator_airflow.sensors import IdleSensor
    from percolator_airflow.triggers import DirtyTrigger

__all__ = [
    "BackupOperator",
    "CollectGarbageOperator",
    "DirtyTrigger",
    "DrainOperator",
    "IdleSensor",
    "LoadOperator",
    "MaintainBasesOperator",
    "MonitorOperator",
    "PercolatorHook",
    "PublishOperator",
    "ResolveLocksOperator",
    "chain_dags",
    "dirty_asset",
    "table_asset",
]

# Each process of Airflow imports only the modules that it uses.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "assets": ("dirty_asset", "table_asset"),
        "dags.factory": ("chain_dags",),
        "hook": ("PercolatorHook",),
        "operators.archive": ("BackupOperator", "PublishOperator"),
        "operators.drain": ("DrainOperator",),
        "operators.load": ("LoadOperator",),
        "operators.maintenance": (
            "CollectGarbageOperator",
            "MaintainBasesOperator",
            "ResolveLocksOperator",
        ),
        "operators.monitor": ("MonitorOperator",),
        "sensors": ("IdleSensor",),
        "triggers": ("DirtyTrigger",),
    },
)
