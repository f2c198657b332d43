"""Remove the files of a tablet that nobody needs any more.

A file is needed if the valid manifest names it, or a manifest that a reader may still use: one that was the
valid one within the grace period before now, or before the oldest pinned snapshot.

A maintainer writes row sets before it names them, so a file without a name may be new. To be sure that nobody
will name it, a new manifest with the same content is published before anything is removed: it makes the
manifest of every maintainer that is still at work late, and so refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import percolator_core.base.manifest as manifests
from percolator_core.base.location import StoredFile
from percolator_core.base.manifest import Manifest
from percolator_core.base.publication import Place, publish
from percolator_core.errors import BaseDamaged
from percolator_core.store import Store

_MANIFEST: Final = re.compile(r"/manifest-(\d+)-[^/]*$")


def remove_unneeded(store: Store, place: Place, reference: bytes, since: float) -> int:
    """Remove the files of a tablet that no reader needs; return how many.

    ``reference`` is that of the valid manifest. Readers may still use manifests that were replaced after
    ``since``, in seconds since 1970. Files that were written after that stay, too.

    Raises:
        BaseDamaged: the valid manifest is missing or damaged.
        StoreUnavailable: the store or the location does not answer.
    """
    location, name = place.location, manifests.split_reference(reference)[1]
    files = location.files(place.folder)
    valid = manifests.load(location, name)
    old = [one.name for one in files if one.written < since]
    needed = {name, *valid.files}
    for late in _in_use(files, valid.number, since):
        needed.add(late)
        with suppress(BaseDamaged):  # another maintainer has removed it
            needed |= manifests.load(location, late).files
    unneeded = [one for one in old if one not in needed]
    if not unneeded:
        return 0
    published, _ = publish(store, place, reference, replace(valid, number=valid.number + 1))
    if published != "published":
        return 0
    for one in unneeded:
        location.remove(one)
    return len(unneeded)


def _in_use(files: Sequence[StoredFile], valid: int, since: float) -> Iterator[str]:
    """The manifests before the valid one that were replaced after ``since``, by name.

    A manifest is replaced by one with the next number, not before that one was written.
    """
    numbers = {one.name: int(found[1]) for one in files if (found := _MANIFEST.search(one.name))}
    written: dict[int, float] = {}
    for one in files:
        number = numbers.get(one.name)
        if number is not None:
            written[number] = max(written.get(number, 0.0), one.written)
    for name, number in numbers.items():
        if number < valid and written.get(number + 1, 0.0) >= since:
            yield name


def size_of(manifest: Manifest) -> int:
    """Return the bytes of the row sets of a manifest."""
    return sum(entry.row_set.size for entry in manifest.entries)
