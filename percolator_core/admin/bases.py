"""The bases of tables, for the status of a namespace."""

from __future__ import annotations

from dataclasses import dataclass

from percolator_core.database import Database
from percolator_core.errors import BaseDamaged, ConfigurationError, StoreUnavailable
from percolator_core.schema.definitions import TableDefinition


@dataclass(frozen=True, slots=True)
class BaseStatus:
    """The base of a table, as its manifests describe it. If they cannot be read, ``error`` says why.

    The numbers mean the same as in `percolator_core.maintenance.bases.TableBase`; with an ``error`` they are
    0. ``location`` is shown without its user and options.
    """

    location: str
    rows: int = 0
    bytes: int = 0
    height: int = 0
    timestamp: int = 0
    error: str = ""


def base_status(db: Database, definition: TableDefinition) -> BaseStatus | None:
    """Return the status of a table's base, None without one.

    The call reads the manifests that are new since the last call, and no row. If the location does not
    answer, ``error`` says so and nothing is raised, because the table itself can still be usable.
    """
    rule = definition.base
    if rule is None:
        return None
    location = rule.location
    try:
        location = db.client.bases.location(rule.location).shown
        found = db.maintainer().figures(definition.name, deltas=False)
    except (BaseDamaged, ConfigurationError, StoreUnavailable) as error:
        return BaseStatus(location, error=str(error))
    if found is None:
        return None
    return BaseStatus(location, found.rows_in_base, found.bytes, found.height, found.base_timestamp)
