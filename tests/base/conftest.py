from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from percolator_core.base.location import Location

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of a server that speaks the protocol of S3."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """An empty place for a base: on disk, and in an object store."""
    if request.param == "folder":
        return Location(f"file://{tmp_path}/base")
    address = request.getfixturevalue("object_store")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    options = f"scheme=http&endpoint_override={address}&region=us-east-1"
    store = fs.S3FileSystem(
        scheme="http", endpoint_override=address, region="us-east-1", allow_bucket_creation=True
    )
    store.create_dir("bucket-of-tests")
    return Location(f"s3://bucket-of-tests/{tmp_path.name}?{options}")
