"""The reader returns the records asked for, in order, from any number of threads and files."""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.reading.wanted import Wanted


@given(st.lists(st.integers(0, 56), max_size=80), st.booleans(), st.integers(1, 5))
def test_reads_records_in_the_order_asked(
    catalog: ds.Catalog, by_id: list[bytes], ids: list[int], check_crc: bool, max_open_files: int
) -> None:
    with ds.RecordReader(catalog, check_crc=check_crc, max_open_files=max_open_files) as reader:
        assert reader.read(np.array(ids, np.int64)) == [by_id[identity] for identity in ids]


@pytest.mark.parametrize("outside", [-1, 57])
def test_ids_outside_the_catalog_are_refused(catalog: ds.Catalog, outside: int) -> None:
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.PlanError, match="records 0 to 56"):
        reader.read(np.array([0, outside]))


def test_threads_share_a_reader_with_fewer_files_than_they_need(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    random = np.random.default_rng(0)
    requests = [random.integers(0, 57, 40) for _ in range(200)]
    with ds.RecordReader(catalog, max_open_files=1) as reader, ThreadPoolExecutor(4) as pool:
        for ids, payloads in zip(requests, pool.map(reader.read, requests, timeout=60), strict=True):
            assert payloads == [by_id[identity] for identity in ids]


def test_open_files_are_bounded_and_given_back(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "a", [bytes([number]) for number in range(40)], 40)
    catalog = ds.Catalog.index(tmp_path)

    def open_data_files() -> int:
        links = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path))
        return sum(link.startswith(str(tmp_path)) for link in links)

    reader = ds.RecordReader(catalog, max_open_files=7)
    assert open_data_files() == 0
    reader.read(np.arange(40))
    assert open_data_files() == 7
    reader.close()
    reader.close()
    assert open_data_files() == 0
    with pytest.raises(ds.PlanError, match="closed"):
        reader.read(np.arange(1))


@contextmanager
def limited_descriptors(free: int) -> Iterator[None]:
    """Inside, this process may open no more than `free` files more than it has open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is on numbers, of which open files need not have the lowest.
    used = [int(entry.name) for entry in os.scandir("/proc/self/fd")]
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(max(used) - len(used) + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max([*used, *held]) + 1 + free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


def test_more_shards_than_the_process_may_open_are_read(tmp_path: Path) -> None:
    payloads = [bytes([number]) for number in range(120)]
    ds.write_shards(tmp_path, "a", payloads, 120)
    with limited_descriptors(free=30):
        catalog = ds.Catalog.index(tmp_path)
        with ds.RecordReader(catalog) as training, ds.RecordReader(catalog) as validation:
            assert training.read(np.arange(120)) == validation.read(np.arange(120)) == payloads
    with limited_descriptors(free=0), ds.RecordReader(catalog) as reader, pytest.raises(ds.ShardingError) as caught:
        reader.read(np.arange(120))
    assert "cannot be opened: Too many open files" in caught.value.fact
    assert "ulimit -n" in caught.value.hint
    assert not isinstance(caught.value, ds.ChangedDataError)
    with limited_descriptors(free=30), pytest.raises(ds.ShardingError, match="50 files are to be written") as caught:
        ds.write_shards(tmp_path / "more", "b", payloads, 50)
    assert "ulimit -n" in caught.value.hint
    assert not list((tmp_path / "more").iterdir())


def test_a_reader_needs_a_file(catalog: ds.Catalog) -> None:
    with pytest.raises(ds.PlanError, match="one open file"):
        ds.RecordReader(catalog, max_open_files=0)


def test_a_replaced_file_is_read_as_it_was_or_refused(tmp_path: Path) -> None:
    (path,) = ds.write_shards(tmp_path, "a", [b"old data"], 1)
    catalog = ds.Catalog.index(path)
    with ds.RecordReader(catalog) as reader:
        assert reader.read(np.arange(1)) == [b"old data"]
        os.utime(ds.write_shards(tmp_path, "a", [b"new data"], 1)[0], ns=(0, 0))
        assert reader.read(np.arange(1)) == [b"old data"]
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.ChangedDataError, match="was modified after"):
        reader.read(np.arange(1))


@given(
    st.lists(st.lists(st.integers(0, 56), min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from(["raise", "mask"]),
    st.booleans(),
)
def test_several_batches_read_at_once_are_those_read_one_by_one(
    catalog: ds.Catalog, batches: list[list[int]], on_corrupt: Literal["raise", "mask"], damaged: bool
) -> None:
    """Also where a record is damaged: its stand-in is of its own batch, and an error is raised."""
    if damaged:
        crcs = np.array(catalog.crcs)
        crcs[batches[0][0]] ^= 1
        catalog = dataclasses.replace(catalog, crcs=crcs)
    several = [Wanted(np.array(ids, np.int64), ds.SampleRandom(1, 0, np.array(ids))) for ids in batches]
    with ds.RecordReader(catalog, on_corrupt=on_corrupt) as reader:
        if damaged and on_corrupt == "raise":
            with pytest.raises(ds.CorruptRecordError):
                reader.load_several(several)
            return
        for one, (ids, random, *_) in zip(reader.load_several(several), several, strict=True):
            alone = reader.load(ids, random)
            assert one.payloads == alone.payloads
            np.testing.assert_array_equal(one.intact, alone.intact)
            np.testing.assert_array_equal(one.ids, ids)
            assert (one.labels is None) == (alone.labels is None)
            assert one.random is random
