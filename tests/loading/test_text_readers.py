"""JSON lines, CSV and Parquet: what is read, what is put aside and why."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import MAX_ROW
from percolator_core.loading import records
from percolator_core.loading import source as source_module
from percolator_core.loading.formats import json_lines
from percolator_core.loading.records import BadRecord, Record, encode_value
from percolator_core.loading.source import Source, open_source


def read(source: Source) -> tuple[list[Record], list[BadRecord]]:
    reader = source.reader()
    items = [item for task in source.tasks(2) for split in task for item in reader.read(split)]
    return [i for i in items if isinstance(i, Record)], [i for i in items if isinstance(i, BadRecord)]


def cells(found: list[Record]) -> dict[bytes, dict[str, bytes | None]]:
    return {record.key: record.cells for record in found}


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, None),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        ("é", "é".encode()),
        ("", b""),
        (True, b"true"),
        (False, b"false"),
        (12, b"12"),
        (-(10**30), b"-1000000000000000000000000000000"),
        (0.1, b"0.1"),
        (float("nan"), b"nan"),
        (Decimal("1.50"), b"1.50"),
        (date(2026, 1, 2), b"2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), b"2026-01-02T03:00:00+00:00"),
        ({"b": [1, None, "é"], "a": b"\xff"}, '{"a":"/w==","b":[1,null,"é"]}'.encode()),
    ],
)
def test_encoding_of_values(value: object, encoded: bytes | None) -> None:
    assert encode_value(value) == encoded


def test_a_type_without_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="object has no encoding"):
        encode_value(object())


# JSON lines


def test_jsonl_good_and_bad_lines(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"id": "a", "n": 1, "x": null, "deep": {"k": [true]}}',
        b"",
        b'{"id": "b", ',
        b"[1]",
        b'{"n": 1}',
        b'{"id": ""}',
        b'{"id": true}',
        b'{"id": "c", "s": "\xff"}',
        b'{"id": "d", "s": "\\ud800"}',
        b'{"id": 7, "s": "last, no newline"}',
    ]
    path = write(tmp_path / "in.jsonl", b"\n".join(lines))
    good, bad = read(open_source(path, key="id"))
    assert cells(good) == {
        b"a": {"n": b"1", "x": None, "deep": b'{"k":[true]}'},
        b"7": {"s": b"last, no newline"},
    }
    offsets = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    assert [item.origin.position for item in bad] == [offsets[n] for n in (2, 3, 4, 5, 6, 7, 8)]
    reasons = [item.reason for item in bad]
    assert [reason.split(":")[0] for reason in reasons] == [
        "not JSON",
        "not a JSON object, but a list",
        "the row key is missing",
        "the row key is empty",
        "a bool cannot be a row key",
        "byte 18 is not UTF-8",
        "column 's'",
    ]
    aside = json.loads(bad[5].to_json())
    assert aside == {
        "file": str(path),
        "byte": offsets[7],
        "reason": reasons[5],
        "head": '{"id": "c", "s": "\\xff"}\n',
    }
    assert bad[6].key == b"d"


def test_jsonl_columns_select_and_rename(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", '{"id": "a", "body": "x", "rest": 1}\n{"id": "b"}\n')
    good, bad = read(open_source(path, "jsonl", key="id", columns={"body": "contents", "id": "url"}))
    assert cells(good) == {b"a": {"contents": b"x", "url": b"a"}, b"b": {"contents": None, "url": b"b"}}
    assert not bad


def test_jsonl_every_cut_reads_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"id": number, "s": "x" * (number % 9)}) for number in range(40)]
    path = write(tmp_path / "in.jsonl", "\n".join(lines))
    for size in (1, 2, 7, 25, 26, 100, 10_000):
        monkeypatch.setattr(source_module, "task_size", lambda *_, size=size: size)
        good, bad = read(open_source(path, key="id"))
        assert [record.key for record in good] == [str(number).encode() for number in range(40)]
        assert not bad


def test_jsonl_a_line_over_the_limit_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_MAX_LINE", 64)
    monkeypatch.setattr(json_lines, "_CHUNK", 16)
    path = write(tmp_path / "in.jsonl", '{"id": 1}\n{"id": 2, "s": "' + "x" * 500 + '"}\n{"id": 3}\n')
    good, bad = read(open_source(path, key="id"))
    assert [record.key for record in good] == [b"1", b"3"]
    assert bad[0].reason == "the line has more than 64 bytes"
    assert len(bad) == 1


def test_jsonl_truncated_gzip(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": number, "s": str(number) * 20}) + "\n" for number in range(1000))
    whole = gzip.compress(lines.encode())
    write(tmp_path / "in.jsonl.gz", whole)
    assert len(read(open_source(tmp_path, key="id"))[0]) == 1000
    write(tmp_path / "in.jsonl.gz", whole[: len(whole) // 2])
    good, bad = read(open_source(tmp_path, key="id"))
    assert 0 < len(good) < 1000
    assert len(bad) == 1
    assert bad[0].reason.startswith("unreadable from here on")


def test_limits_of_keys_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_LOADED_VALUE", 1000)
    rows = [{"id": "k" * MAX_ROW}, {"id": "k" * MAX_ROW + "k"}, {"id": "v", "s": "x" * 1001}]
    path = write(tmp_path / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    good, bad = read(open_source(path, key="id"))
    assert len(good) == 1
    assert bad[0].reason == "the row key has 65537 bytes, more than 65536"
    assert bad[1].reason == "column 's': the value has 1001 bytes, more than 1000"
    assert len(bad[0].head) <= records.HEAD


def test_a_column_name_that_cannot_be_is_put_aside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.jsonl", json.dumps({"id": 1, "": 2}) + "\n" + json.dumps({"id": 1, "c" * 65_537: 2})
    )
    good, bad = read(open_source(path, key="id"))
    assert not good
    assert max(len(item.reason) for item in bad) < 300
    assert [item.reason[:30] for item in bad] == [
        "column '': a column name has 1",
        "column 'cccccccccccccccccccccc",
    ]


# CSV


def test_csv_oddities(tmp_path: Path) -> None:
    text = '\ufeffid;title;"no;te"\r\n1;"a ""quoted"" one";"two\r\nlines; and more"\r\n\r\n2;;x\r\n'
    good, bad = read(open_source(write(tmp_path / "in.csv", text), key="id"))
    assert cells(good) == {
        b"1": {"title": b'a "quoted" one', "no;te": b"two\r\nlines; and more"},
        b"2": {"title": None, "no;te": b"x"},
    }
    assert not bad


def test_csv_wrong_field_counts_and_missing_keys(tmp_path: Path) -> None:
    text = 'id,a,b\n1,x,y\n2,x\n3,x,y,z\n,x,y\n"4","multi\nline",\n5,"multi\nline",y,z\n6,x,y'
    good, bad = read(open_source(write(tmp_path / "in.csv", text), key="id"))
    assert [record.key for record in good] == [b"1", b"4", b"6"]
    assert [(item.origin.position, item.reason) for item in bad] == [
        (3, "2 fields, but the header has 3"),
        (4, "4 fields, but the header has 3"),
        (5, "the row key is missing"),
        (8, "4 fields, but the header has 3"),
    ]
    assert bad[0].head == b"2,x\n"


def test_csv_a_stray_quote_costs_one_line(tmp_path: Path) -> None:
    rows = [f"{number},text {number}" for number in range(50)]
    rows[3] = '3,"never closed'
    rows[30] = '30,"properly ""closed"""'
    good, bad = read(open_source(write(tmp_path / "in.csv", "\n".join(["id,s", *rows])), key="id"))
    assert [record.key for record in good] == [str(n).encode() for n in range(50) if n != 3]
    assert [(item.origin.position, item.head) for item in bad] == [(5, b'3,"never closed\n4,text 4\n')]


def test_csv_keeps_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    good, bad = read(open_source(write(tmp_path / "in.csv", b"id\tv\n\xff\x00\xfe\tcaf\xe9\n"), key="id"))
    assert cells(good) == {b"\xff\x00\xfe": {"v": b"caf\xe9"}}
    assert not bad


def test_csv_encodings_and_options(tmp_path: Path) -> None:
    text = "id,v\né,naïve\nz,NULL\n"
    expected = {"é".encode(): {"v": "naïve".encode()}, b"z": {"v": None}}
    for name, data, encoding in [
        ("utf16.csv", text.encode("utf-16"), None),
        ("latin.csv", text.encode("latin-1"), "latin-1"),
        ("utf8.csv.gz", gzip.compress(text.encode()), None),
    ]:
        path = write(tmp_path / name, data)
        good, bad = read(open_source(path, key="id", encoding=encoding, null_text="NULL"))
        assert (cells(good), bad) == (expected, [])


def test_csv_damaged_files_do_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "id,v\n1,x\n")
    write(tmp_path / "b.csv", "other,v\n1,x\n")
    write(tmp_path / "c.csv", "id,v,v\n1,x,y\n")
    write(tmp_path / "d.csv.gz", b"\x1f\x8bnot gzip")
    write(tmp_path / "e.csv", "")
    write(tmp_path / "f.csv", "id,v\n6,x\n")
    good, bad = read(open_source(tmp_path, key="id"))
    assert [record.key for record in good] == [b"1", b"6"]
    assert [(Path(item.origin.file).name, item.reason.split(",")[0]) for item in bad] == [
        ("b.csv", "the header has no field 'id'"),
        ("c.csv", "the header has the field 'v' more than once"),
        ("d.csv.gz", "unreadable from here on: Unknown compression method"),
    ]


# Parquet


def test_parquet_types_keys_of_any_bytes_and_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "task_size", lambda *_: 1)
    keys = [bytes([number]) + b"\x00\xff:{}" for number in range(256)]
    table = pa.table(
        {
            "k": pa.array(keys, pa.binary()),
            "n": pa.array([None, *range(255)], pa.int64()),
            "nested": pa.array([{"x": [1, 2]}] * 256),
            "when": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 256, pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    source = open_source(tmp_path, key="k")
    assert sum(len(task) for task in source.tasks(2)) == 3
    good, bad = read(source)
    assert not bad
    assert [record.key for record in good] == keys
    assert good[0].cells["n"] is None
    assert good[255].cells == {"n": b"254", "nested": b'{"x":[1,2]}', "when": b"2026-01-01T00:00:00+00:00"}
    assert [record.origin.position for record in good] == list(range(256))
    good, bad = read(open_source(tmp_path, key="k", columns={"n": "number"}))
    assert good[5].cells == {"number": b"4"}


def test_parquet_bad_rows_and_files(tmp_path: Path) -> None:
    invalid = pa.array([b"ok", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"k": ["a", "b", None], "s": invalid}), tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", b"PAR1 not parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "c.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    write(tmp_path / "d.parquet", whole[:-20])
    good, bad = read(open_source(tmp_path, key="k"))
    assert cells(good) == {b"a": {"s": b"ok"}}
    assert [Path(item.origin.file).name for item in bad] == [
        "a.parquet",
        "a.parquet",
        "b.parquet",
        "c.parquet",
        "d.parquet",
    ]
    assert bad[0].reason.startswith("undecodable")
    assert bad[1].reason == "the row key is missing"
    assert "no column 'k'" in bad[3].reason


# What cannot be loaded at all is said at once


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["a.csv"], {"key": "ID"}, r"has no field 'ID': it has id, v"),
        (["a.csv"], {"key": "id", "columns": {"w": "w"}}, "has no field 'w'"),
        (["a.csv"], {"key": "id", "encoding": "nope"}, "encoding 'nope' is not valid"),
        (["a.csv", "b.jsonl"], {"key": "id"}, "there are files of jsonl and csv"),
        (["a.bin"], {}, "no suffix is known"),
        (["a.csv"], {"format": "warc"}, "No warc file"),
        (["a.csv"], {"format": "xml"}, "no format 'xml'"),
    ],
)
def test_configuration_errors(
    tmp_path: Path, names: list[str], arguments: dict[str, Any], message: str
) -> None:
    for name in names:
        write(tmp_path / name, "id,v\n1,2\n")
    with pytest.raises(ConfigurationError, match=message):
        open_source(tmp_path, **arguments)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        open_source(tmp_path / "none.csv", key="id")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        open_source("x" * 5000, key="id")
    os.mkfifo(tmp_path / "endless.csv")
    with pytest.raises(ConfigurationError, match="is neither a file nor a folder"):
        open_source(tmp_path / "endless.csv", key="id")


def test_a_delimiter_is_one_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,v\n1,2\n")
    for delimiter in ("", "||"):
        with pytest.raises(ConfigurationError, match=r"The delimiter '.*' is not valid: use one character"):
            open_source(path, key="id", delimiter=delimiter)


def test_patterns_and_several_paths(tmp_path: Path) -> None:
    for name in ("a1.jsonl", "a2.jsonl", "b.jsonl"):
        write(tmp_path / name, json.dumps({"id": name}))
    good, _ = read(
        open_source([tmp_path / "a*.jsonl", tmp_path / "b.jsonl", tmp_path / "a1.jsonl"], key="id")
    )
    assert [record.key for record in good] == [b"a1.jsonl", b"a2.jsonl", b"b.jsonl"]
