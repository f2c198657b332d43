"""A file of a base is complete, or does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from percolator_core import ConfigurationError, StoreUnavailable
from percolator_core.base.location import Location


def put(location: Location, name: str, content: bytes) -> None:
    with location.create(name) as file:
        file.write(content)


def test_a_file_is_read_as_it_was_written(location: Location) -> None:
    put(location, "t/0/a", b"0123456789")
    put(location, "t/1/b", b"")
    assert location.read("t/0/a") == b"0123456789"
    assert location.read_at("t/0/a", 7, 2) == b"78"
    assert location.read_at("t/0/a", 7, 9) == b"789"
    assert location.read("t/1/b") == b""
    with location.open("t/0/a") as file:
        assert file.size() == 10
    assert location.names() == ["t/0/a", "t/1/b"]


def test_a_removed_file_is_missing(location: Location) -> None:
    assert location.names() == []
    put(location, "t/0/a", b"1")
    for _ in range(2):
        location.remove("t/0/a")
    assert location.names() == []
    for read in (location.read, location.open):
        with pytest.raises(FileNotFoundError):
            read("t/0/a")


def test_a_file_whose_writer_fails_is_not_there(location: Location) -> None:
    def fail() -> None:
        with location.create("t/0/a") as file:
            file.write(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert location.names() == []


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("base", "file:base", f"{tmp_path}/base", f"file:{tmp_path}/base", f"file://{tmp_path}/base"):
        put(Location(url), "a", url.encode())
        assert (tmp_path / "base" / "a").read_bytes() == url.encode()


@pytest.mark.parametrize("url", ["nothing://bucket", "s3://"])
def test_a_url_that_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no usable location"):
        Location(url)


FULL_DISK = """
import resource, signal, sys
from percolator_core import StoreUnavailable
from percolator_core.base.location import Location
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
location = Location(sys.argv[1])
try:
    with location.create("t/0/a") as file:
        for _ in range(4):
            file.write(bytes(1 << 20))
except StoreUnavailable as error:
    print(error)
print(location.names())
"""


def test_a_full_disk_is_one_sentence_and_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    message, names = done.stdout.splitlines()
    assert message.startswith("cannot write t/0/a at ")
    assert "make room" in message
    assert names == "[]"


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root may write everywhere")
def test_a_folder_without_rights_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnavailable, match="grant the right"):
        put(Location(str(tmp_path)), "t/0/a", b"1")


def test_a_bucket_that_does_not_exist_is_one_sentence(
    object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    location = Location(
        f"s3://no-such-bucket/x?scheme=http&endpoint_override={object_store}&region=us-east-1"
    )
    with pytest.raises(StoreUnavailable, match="cannot write t/0/a at s3://no-such-bucket/x "):
        put(location, "t/0/a", b"1")


def test_keys_in_a_url_are_not_shown(object_store: str) -> None:
    location = Location(f"s3://user:secret@no-such-bucket/x?scheme=http&endpoint_override={object_store}")
    assert "secret" not in repr(location)
    with pytest.raises(StoreUnavailable) as refused:
        put(location, "a", b"1")
    assert "secret" not in str(refused.value)


def test_a_file_and_the_new_folders_above_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", note)
    put(Location(f"{tmp_path}/base"), "t/0/a", b"1")
    assert synced == [f"{tmp_path}{path}" for path in ("/base/t/0/a", "/base/t/0", "/base/t", "/base", "")]
