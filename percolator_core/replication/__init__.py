"""Tables of PostgreSQL, kept up to date in Percolator's tables by logical replication.

1. `server` asks PostgreSQL's catalog, and makes and drops the slot. `stream` receives the stream of changes.
2. `messages` decodes the stream into changes of rows, transaction by transaction.
3. `targets` maps a table of PostgreSQL to a table of Percolator, and a row to a key and cells.
4. `apply` writes whole transactions of PostgreSQL and the state of the slot in one transaction.
5. `replicator` copies the tables, `follow` applies the stream, and `replicator` reconnects after failures.

>>> from percolator_core.replication import replicate
>>> replicate(db, "host=db.example dbname=shop", slot="shop", publication="shop", once=True)
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from percolator_core.errors import ConfigurationError
from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.replication.replicator import replicate
    from percolator_core.replication.report import (
        ReplicationProgress,
        ReplicationReport,
        ReplicationStopped,
        SlotInUse,
    )

__all__ = ["ReplicationProgress", "ReplicationReport", "ReplicationStopped", "SlotInUse", "replicate"]

if find_spec("psycopg") is None:
    raise ConfigurationError("replication needs psycopg: pip install 'percolator-core[postgres]'")

# Lazy imports: psycopg takes a while.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "replicator": ("replicate",),
        "report": ("ReplicationProgress", "ReplicationReport", "ReplicationStopped", "SlotInUse"),
    },
)
