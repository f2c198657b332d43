"""Publish a manifest: write it, and make it the valid one of its tablet."""

from __future__ import annotations

from typing import NamedTuple

import percolator_core.base.manifest as manifests
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Published
from percolator_core.store import Store


class Place(NamedTuple):
    """The tablet of a base: its tag, the version of its table, and the folder of its files in a location."""

    tag: bytes
    version: bytes
    location: Location
    folder: str


def publish(store: Store, place: Place, expected: bytes, manifest: Manifest) -> tuple[Published, bytes]:
    """Replace the manifest of the reference ``expected``; return the outcome and the new reference.

    The row sets of the manifest are complete and on disk before. After a refusal the files stay: if this call
    was sent twice, it may have been published, and then replaced by a manifest that names the row sets, too.

    Raises:
        StoreUnavailable: the store or the location does not answer.
    """
    name = manifests.publish(place.location, place.folder, manifest)
    reference = manifests.reference(place.location, name)
    call = calls.publish_base(place.tag, expected, reference, manifest.timestamp, place.version)
    # Durable, so that no failover brings back the manifest before, whose rows may have left the store.
    [published] = store.run_all([call], durably=True)
    return published, reference
