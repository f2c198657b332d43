"""The options of the data source: what they mean, and one sentence for what cannot be."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from percolator_core import ConfigurationError
from percolator_core.spark.tables.options import Place, ReadOptions, WriteOptions, read_options, write_options

PLACE = {"url": "redis://:secret@h:1/0", "table": "t"}


def test_a_read() -> None:
    given = {
        "columns": "a, b,a",
        "partitions": "3",
        "AT": "2026-01-31T13:00:00+01:00",
        "since": "0",
        "lease": "5",
    }
    found = read_options({**PLACE, **given})
    place = Place("redis://:secret@h:1/0", "default", "t")
    assert found == ReadOptions(place, 1769860800_000000, 0, ("a", "b"), "", 3, 5.0)
    assert read_options({**PLACE, "at": "17", "namespace": "n", "partitions": "4"}) == ReadOptions(
        Place("redis://:secret@h:1/0", "n", "t"), 17
    )


def test_a_write() -> None:
    found = write_options({**PLACE, "mode_of_rows": "INSERT", "newer": "fail", "skip_unchanged": "False"})
    assert found == WriteOptions(Place("redis://:secret@h:1/0", "default", "t"), "insert", "fail", False)
    assert write_options({**PLACE, "checkpointLocation": "/x"}).mode == "upsert"


def test_a_folder_stands_in_full() -> None:
    """Executors are elsewhere."""
    assert (
        read_options({"url": "embedded:state", "table": "t"}).place.url
        == f"embedded:{Path('state').absolute()}"
    )


def test_the_password_is_not_shown() -> None:
    options = read_options(PLACE)
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert "secret" not in repr(options) + repr(again) + repr(again.place.url)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": ""}, "'url' is missing"),
        ({"table": ""}, "'table' is missing"),
        ({"colums": "a"}, "no option 'colums'"),
        ({"mode_of_rows": "upsert"}, "no option 'mode_of_rows' here"),
        ({"at": "yesterday"}, "'at' is a timestamp"),
        ({"at": "2026-01-31T12:00:00"}, "with its zone"),
        ({"at": "0"}, "'at' is a timestamp"),
        ({"at": str(2**60)}, "'at' is a timestamp"),
        ({"since": "-1"}, "'since' is a timestamp"),
        ({"columns": "a,,b"}, "'columns' is a list of names"),
        ({"partitions": "0"}, "'partitions' is a whole number above 0"),
        ({"partitions": "1.5"}, "'partitions' is a whole number above 0"),
        ({"lease": "inf"}, "'lease' is seconds, above 0"),
    ],
)
def test_what_cannot_be_read(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        read_options({**PLACE, **given})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode_of_rows": "append"}, "one of upsert, insert, update, remove, not 'append'"),
        ({"newer": "no"}, "'newer' is one of"),
        ({"skip_unchanged": "1"}, "'skip_unchanged' is one of"),
        ({"columns": "a"}, "no option 'columns' here"),
    ],
)
def test_what_cannot_be_written(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        write_options({**PLACE, **given})
