"""Assets: tables of a store, and the pending work of a chain.

::

    percolator://CONN_ID/NAMESPACE/TABLE          a table
    percolator://CONN_ID/TABLE                    a table in the connection's own namespace
    percolator://CONN_ID/NAMESPACE?dirty=CHAIN    cells that wait for a chain's observers

A URI names the connection, never the address of the store.
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
    """Check an asset's URI and normalize it. Airflow calls this function for the scheme ``percolator``.

    Raises:
        ValueError: the URI has none of the three forms.
    """
    parts = [unquote(part) for part in uri.path.split("/") if part]
    dirty = dict(parse_qsl(uri.query, keep_blank_values=True))
    if not uri.netloc or "@" in uri.netloc or ":" in uri.netloc:
        raise ValueError(
            "a percolator:// asset names a connection, not a server: write percolator://CONN_ID/NAMESPACE/TABLE"
        )
    if uri.query and (set(dirty) != {"dirty"} or not dirty["dirty"] or len(parts) != 1):
        raise ValueError(
            "the only query of a percolator:// asset is percolator://CONN_ID/NAMESPACE?dirty=CHAIN"
        )
    if not 1 <= len(parts) <= 2:
        raise ValueError(
            "write a percolator:// asset as percolator://CONN_ID/NAMESPACE/TABLE or percolator://CONN_ID/TABLE"
        )
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    query = f"dirty={quote(dirty['dirty'], safe='')}" if dirty else ""
    return uri._replace(path=path, query=query, fragment="")


def create_asset(uri: SplitResult, name: str | None = None, **others: Any) -> Asset:
    """Return the asset of a URI. Airflow calls this function for the scheme ``percolator``."""
    from airflow.sdk import Asset

    text = sanitize_uri(uri).geturl()
    return Asset(name=name or text, uri=text, **others)


def table_asset(
    table: str, conn_id: str = DEFAULT_CONN_ID, namespace: str | None = None, **others: Any
) -> Asset:
    """Return the asset of a table, for outlets and schedules; ``others`` are further arguments of Asset."""
    from airflow.sdk import Asset

    parts = [part for part in (namespace, table) if part]
    uri = f"{SCHEME}://{conn_id}" + "".join(f"/{quote(part, safe='')}" for part in parts)
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
    """Return an asset that is updated while a chain has pending work; see `DirtyTrigger` for the arguments.

    A DAG that has the asset as its schedule then runs. A relative ``chain`` is relative to the folder of the
    calling file. ``others`` are further arguments of Asset.

    Raises:
        ConfigurationError: the chain's declarations are invalid.
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
    # The URI is the name: if two assets had the same name, Airflow would not watch one of them.
    return Asset(**{"name": uri, "uri": uri, "watchers": watchers, **others})
