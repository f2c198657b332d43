"""The positions of rows of a row set that are no longer part of the table.

A row of a row set counts as removed if a newer row set has the row, or if the row was deleted. The row set is
immutable, so the positions are in a separate file: ascending numbers of 32 bits, compressed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

from percolator_core.base.location import Location
from percolator_core.base.manifest import Removed
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import numpy as np

    Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

_TYPE: Final = "<u4"
_CODEC: Final = "zstd"


def write(location: Location, folder: str, positions: Sequence[int]) -> Removed:
    """Write positions, which ascend strictly. Raises StoreUnavailable as `Location.create`."""
    import numpy as np

    pa = pyarrow()
    content = pa.compress(np.array(positions, _TYPE).tobytes(), codec=_CODEC, asbytes=True)
    name = f"{folder}/removed-{uuid.uuid4().hex}"
    with location.create(name) as file:
        file.write(content)
    return Removed(name, len(positions), crc32(content))


def load(location: Location, removed: Removed) -> Positions:
    """Return the positions. Raises as `Location.read_verified`."""
    import numpy as np

    pa = pyarrow()
    content = location.read_verified(removed.file, lambda found: crc32(found) == removed.checksum)
    size = removed.rows * np.dtype(_TYPE).itemsize
    return np.frombuffer(pa.decompress(content, size, codec=_CODEC, asbytes=True), _TYPE)
