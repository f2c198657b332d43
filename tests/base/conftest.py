from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from percolator_core.base.location import Location

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


def make_bucket(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[fs.S3FileSystem, str]:
    """Create a bucket; return the file system of the object store, and the query of URLs in it."""
    for variable, value in KEYS.items():
        monkeypatch.setenv(variable, value)
    store = fs.S3FileSystem(
        scheme="http", endpoint_override=address, region="us-east-1", allow_bucket_creation=True
    )
    store.create_dir(name)
    return store, f"?scheme=http&endpoint_override={quote(address)}&region=us-east-1"


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of a server with the protocol of S3."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """An empty location: a folder, and a prefix of a bucket."""
    if request.param == "folder":
        return Location(f"file://{tmp_path}/base")
    _, query = make_bucket("bucket-of-tests", request.getfixturevalue("object_store"), monkeypatch)
    return Location(f"s3://bucket-of-tests/{tmp_path.name}{query}")
