"""Records of a Kafka topic, written into a table: each exactly once.

1. `records` converts a record to a row of a raw or a typed table, or to the deletion of a row.
2. `apply` writes records of one partition and the offset behind them in one transaction.
3. `consumer` reads the partitions from the stored offsets, and reconnects after failures.

>>> from percolator_core.kafka import consume
>>> consume(db, "kafka.example:9092", "items", "items", name="shop", once=True)
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from percolator_core.errors import ConfigurationError
from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.kafka.consumer import consume
    from percolator_core.kafka.report import (
        ConsumptionProgress,
        ConsumptionReport,
        ConsumptionStopped,
        PartitionInUse,
    )

__all__ = ["ConsumptionProgress", "ConsumptionReport", "ConsumptionStopped", "PartitionInUse", "consume"]

if find_spec("confluent_kafka") is None:
    raise ConfigurationError("consuming needs confluent-kafka: pip install 'percolator-core[kafka]'")

# Lazy imports: the client of Kafka takes a while.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "consumer": ("consume",),
        "report": ("ConsumptionProgress", "ConsumptionReport", "ConsumptionStopped", "PartitionInUse"),
    },
)
