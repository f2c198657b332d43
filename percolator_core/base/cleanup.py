"""Remove those files of a tablet that no reader needs any more.

A reader needs the files of the manifest that was valid when it began. So the files of the valid manifest
stay, and also the files of each manifest that was replaced since a given moment.

A maintainer writes row sets before a manifest names them, so a file that no manifest names may be new.
Therefore a manifest with the same content and a new number is published before any file is removed. After
that, the store refuses the manifests of all maintainers that began before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import percolator_core.base.manifest as manifests
from percolator_core.base.manifest import TabletFolder, publish
from percolator_core.errors import BaseDamaged
from percolator_core.store import Store

_MANIFEST: Final = re.compile(r"/manifest-(\d+)-[^/]*$")


def remove_unneeded(store: Store, folder: TabletFolder, reference: bytes, since: float) -> int:
    """Remove those files of a tablet that no reader needs; return their number.

    ``reference`` names the valid manifest, whose files stay. So do files that were written after ``since``
    (seconds since 1970), and files of manifests that were replaced after ``since``.

    Raises:
        BaseDamaged: the valid manifest is missing or damaged.
        StoreUnavailable: the store or the location does not answer.
    """
    location, name = folder.location, manifests.split_reference(reference)[1]
    files = location.files(folder.name)
    valid = manifests.load(location, name)
    old = [one for one, written in files.items() if written < since]
    needed = {name, *valid.files}
    for late in _in_use(files, valid.number, since):
        needed.add(late)
        with suppress(BaseDamaged):  # another maintainer has removed it
            needed |= manifests.load(location, late).files
    unneeded = [one for one in old if one not in needed]
    if not unneeded:
        return 0
    if publish(store, folder, reference, replace(valid, number=valid.number + 1)) is None:
        return 0
    for one in unneeded:
        location.remove(one)
    return len(unneeded)


def _in_use(files: Mapping[str, float], valid: int, since: float) -> Iterator[str]:
    """Yield the names of the manifests that were replaced at or after ``since``.

    The file of manifest n + 1 is written just before manifest n is replaced. So the time of that file counts
    as the time of the replacement.
    """
    numbers = {name: int(found[1]) for name in files if (found := _MANIFEST.search(name))}
    written: dict[int, float] = {}
    for name, number in numbers.items():
        written[number] = max(written.get(number, 0.0), files[name])
    for name, number in numbers.items():
        if number < valid and written.get(number + 1, 0.0) >= since:
            yield name
