"""Assets: tables of a store, and the fact that a chain has something to do.

::

    percolator://CONN_ID/NAMESPACE/TABLE          a table
    percolator://CONN_ID/TABLE                    in the connection's own namespace
    percolator://CONN_ID/NAMESPACE?dirty=CHAIN    cells that wait for a chain's observers

They name the connection, never where it leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote

from percolator_airflow.connection import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from os import PathLike

    from airflow.sdk import Asset

SCHEME: Final = "percolator"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check an asset's URI, and write each part in one way. Airflow calls it for the scheme ``percolator``.

    Raises:
        ValueError: it is none of the three forms.
    """
    parts = [unquote(part) for part in uri.path.split("/") if part]
    dirty = dict(parse_qsl(uri.query, keep_blank_values=True))
    if not uri.netloc or "@" in uri.netloc or ":" in uri.netloc:
        raise ValueError(
            "a percolator:// asset names a connection, not a server: write percolator://CONN_ID/NAMESPACE/TABLE"
        )
    if uri.query and (set(dirty) != {"dirty"} or not dirty["dirty"] or len(parts) != 1):
        raise ValueError(
            "behind the ? of a percolator:// asset stands dirty=CHAIN, before it CONN_ID/NAMESPACE"
        )
    if not 1 <= len(parts) <= 2:
        raise ValueError(
            "a percolator:// asset is percolator://CONN_ID/NAMESPACE/TABLE or percolator://CONN_ID/TABLE"
        )
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    query = f"dirty={quote(dirty['dirty'], safe='')}" if dirty else ""
    return uri._replace(path=path, query=query, fragment="")


def create_asset(uri: SplitResult, name: str | None = None, **others: Any) -> Asset:
    """An asset of such a URI; the factory of the scheme."""
    from airflow.sdk import Asset

    text = sanitize_uri(uri).geturl()
    return Asset(name=name or text, uri=text, **others)


def table_uri(table: str, conn_id: str = DEFAULT_CONN_ID, namespace: str | None = None) -> str:
    """The URI of a table's asset."""
    parts = [part for part in (namespace, table) if part]
    return f"{SCHEME}://{conn_id}" + "".join(f"/{quote(part, safe='')}" for part in parts)


def table_asset(
    table: str, conn_id: str = DEFAULT_CONN_ID, namespace: str | None = None, **others: Any
) -> Asset:
    """The asset of a table, for outlets and schedules; ``others`` are further arguments of Asset."""
    from airflow.sdk import Asset

    uri = table_uri(table, conn_id, namespace)
    return Asset(**{"name": uri, "uri": uri, **others})


def dirty_asset(
    chain: str | PathLike[str],
    conn_id: str = DEFAULT_CONN_ID,
    namespace: str | None = None,
    *,
    poll: float = 0.5,
    settle: float = 0.2,
    remind: float = 30.0,
    **others: Any,
) -> Asset:
    """The asset that is updated when a chain has something to do; see `DirtyTrigger` for the arguments.

    A DAG that has it as its schedule runs then. A relative ``chain`` is looked for from the folder of the
    file that calls this. ``others`` are further arguments of Asset.

    Raises:
        ConfigurationError: the chain does not validate.
    """
    from airflow.sdk import Asset, AssetWatcher

    from percolator_airflow.chains import ChainFolder, folder_of_caller, located
    from percolator_airflow.triggers import DirtyTrigger

    folder = ChainFolder.of(located(folder_of_caller(), chain))
    trigger = DirtyTrigger(str(folder.path), conn_id, namespace, poll=poll, settle=settle, remind=remind)
    uri = (
        f"{SCHEME}://{conn_id}/{quote(namespace or folder.name, safe='')}?dirty={quote(folder.name, safe='')}"
    )
    watchers = [AssetWatcher(name=f"{folder.name}_dirty", trigger=trigger)]
    # By its URI: of two assets with one name Airflow would leave one unwatched.
    return Asset(**{"name": uri, "uri": uri, "watchers": watchers, **others})
