"""Decoded groups that do not fit into the memory for them are kept in the cache on the disk, and decoded no more."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.formats.arrow import ArrowTable
from data_sharding.formats.parquet import ParquetTable
from data_sharding.kept_blocks import KEPT

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, IN_A_GROUP, EACH = 1_000, 50, 2_000
GROUPS = ROWS // IN_A_GROUP


def table() -> Any:
    blobs = [number.to_bytes(4, "big") * (EACH // 4) for number in range(ROWS)]
    return pa.table({"blob": pa.array(blobs, pa.binary()), "label": pa.array(range(ROWS), pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> ds.Catalog:
    (tmp_path / "data").mkdir()
    pq.write_table(table(), tmp_path / "data" / "a.parquet", row_group_size=IN_A_GROUP)
    return ds.Catalog.index(tmp_path / "data")


@pytest.fixture(autouse=True)
def _small_memory() -> Iterator[None]:
    """Room for 4 of the 20 groups."""
    limit = KEPT.limit
    ds.keep_at_most(4 * IN_A_GROUP * EACH)
    yield
    ds.keep_at_most(limit)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the groups that were decoded so far."""
    numbers: list[int] = []
    for kind in (ParquetTable, ArrowTable):
        read = kind.read

        def counted(self: Any, group: int, names: Any, read: Any = read) -> Any:
            numbers.append(group)
            return read(self, group, names)

        monkeypatch.setattr(kind, "read", counted)
    return numbers


def cache_of(tmp_path: Path, limit: int | None = None) -> ds.FileCache:
    return ds.FileCache(tmp_path / "cache", limit)


def read_all(reader: ds.RecordReader, catalog: ds.Catalog) -> None:
    """Every row, in an order that comes back to every group."""
    for ids in np.random.default_rng(0).permutation(len(catalog)).reshape(-1, 100):
        for number, payload in zip(ids.tolist(), reader.read(ids), strict=True):
            assert payload == number.to_bytes(4, "big") * (EACH // 4)


def test_each_group_is_decoded_twice_at_most(catalog: ds.Catalog, tmp_path: Path, decoded: list[int]) -> None:
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
        read_all(reader, catalog)
    assert len(decoded) <= 2 * GROUPS
    decoded.clear()
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:  # a later job
        read_all(reader, catalog)
    assert decoded == []


def test_without_a_cache_groups_are_decoded_again_and_again(catalog: ds.Catalog, decoded: list[int]) -> None:
    with ds.RecordReader(catalog) as reader:
        read_all(reader, catalog)
    assert len(decoded) > 5 * GROUPS


def test_what_fits_into_memory_is_not_written(catalog: ds.Catalog, tmp_path: Path) -> None:
    ds.keep_at_most(2 * ROWS * EACH)
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
        read_all(reader, catalog)
    assert not list(tmp_path.glob("cache/files/*"))


def test_record_batches_and_rows_of_several_columns_too(tmp_path: Path, decoded: list[int]) -> None:
    rows = pa.table({"x": [[number, 1] for number in range(ROWS)], "word": [f"w{n % 7}" for n in range(ROWS)]})
    rows = rows.set_column(1, "word", rows["word"].dictionary_encode())
    (tmp_path / "data").mkdir()
    with pa.OSFile(str(tmp_path / "data" / "a.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=IN_A_GROUP)
    catalog = ds.Catalog.index(tmp_path / "data")
    ds.keep_at_most(0)
    with ds.RecordReader(catalog) as plain, ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        for _ in range(3):
            assert reader.read(np.arange(0, ROWS, 7)) == plain.read(np.arange(0, ROWS, 7))
        decoded.clear()
        reader.read(np.arange(0, ROWS, 7))
    assert decoded == []


def test_columns_whose_names_have_slashes_are_others(tmp_path: Path) -> None:
    rows = 100
    (tmp_path / "data").mkdir()
    columns = {"a": range(rows), "b": [1] * rows, "a/b": [2] * rows, "blob": [bytes(EACH)] * rows}
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), tmp_path / "data" / "a.parquet")
    ds.keep_at_most(0)
    for chosen, expected in (("a,b", {"a", "b"}), ("a/b", {"a/b"}), ("a,b", {"a", "b"})):
        catalog = ds.Catalog.index(tmp_path / "data", format=ds.format_named("parquet", {"columns": chosen}))
        with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
            for _ in range(3):
                (payload,) = reader.read(np.array([7]))
                assert ds.example.decode(payload).keys() == expected


def files_of(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.glob("cache/files/*") if not path.suffix]


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "rewritten"])
def test_a_damaged_file_is_decoded_again(
    catalog: ds.Catalog, tmp_path: Path, decoded: list[int], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
    for path in (written := files_of(tmp_path)):
        status = path.stat()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(content[:-9] if how == "cut" else content)
        if how == "flipped":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(written) == GROUPS
    decoded.clear()
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
        assert GROUPS <= len(decoded) <= 2 * GROUPS
        decoded.clear()
        read_all(reader, catalog)
    assert decoded == []


def test_a_file_that_is_cut_short_while_it_is_mapped_gives_no_zeros(
    catalog: ds.Catalog, tmp_path: Path, decoded: list[int]
) -> None:
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
        read_all(reader, catalog)
        decoded.clear()
        for path in files_of(tmp_path):
            os.truncate(path, 4096)
        read_all(reader, catalog)
        assert decoded


def test_where_there_is_no_room_rows_are_decoded(
    catalog: ds.Catalog, tmp_path: Path, decoded: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    limit = 3 * IN_A_GROUP * EACH
    with ds.RecordReader(catalog, cache=cache_of(tmp_path, limit)) as reader:
        read_all(reader, catalog)
    assert sum(path.stat().st_size for path in files_of(tmp_path)) <= limit
    assert len(decoded) > 5 * GROUPS
    assert [record.message.count("HINT: allow a larger cache") for record in caplog.records] == [1]


def test_another_version_of_the_data_has_groups_of_its_own(
    catalog: ds.Catalog, tmp_path: Path, decoded: list[int]
) -> None:
    with ds.RecordReader(catalog, cache=cache_of(tmp_path)) as reader:
        read_all(reader, catalog)
    os.utime(catalog.files[0].path, ns=(1, 1))
    again = ds.Catalog.index(tmp_path / "data")
    decoded.clear()
    with ds.RecordReader(again, cache=cache_of(tmp_path)) as reader:
        read_all(reader, again)
    assert len(decoded) >= GROUPS
