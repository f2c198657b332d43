"""The declarations of chains, read again after a change of their files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain
from percolator_core.observers.stamps import stamps

if TYPE_CHECKING:
    from percolator_core.ui.host import ShownChain


def declared(chain: ShownChain) -> Chain:
    """Return the chain's declarations, without its code.

    Raises:
        ConfigurationError: they are not on this machine, or are invalid.
    """
    if not chain.path.is_dir():
        raise ConfigurationError(
            f"the folder of the chain {chain.name!r} is not on the machine that serves the pages: put it "
            f"there, at {chain.path}"
        )
    found = _load(chain.path, stamps(chain.path))
    if isinstance(found, ConfigurationError):
        raise found
    return found


@lru_cache(maxsize=50)  # an edited chain stays until others take its place
def _load(path: Path, _stamps: frozenset[tuple[str, int]]) -> Chain | ConfigurationError:
    """Load a chain, or return its mistakes, for these times of its files."""
    try:
        return Chain.load(path, import_functions=False)
    except ConfigurationError as error:
        return error
