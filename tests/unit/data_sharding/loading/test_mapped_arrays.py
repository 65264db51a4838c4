"""Memory maps of an object are mapped again by the processes that make its items, and not copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from data_sharding import Catalog, ChangedDataError, RecordReader
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.decode_worker import Setup
from data_sharding.loading.decoding import read_and_decode
from data_sharding.loading.mapped_arrays import array_at, place_of_array

SHAPE = (4096, 33)
VALUES = np.arange(4096 * 33, dtype=np.float32).reshape(SHAPE)
IDS = np.array([4, 0, 4095])

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda array: array,
    "rows": lambda array: array[10:20],
    "every third column, backwards": lambda array: array[::-2, ::3],
    "transposed": lambda array: array.T,
    "plain": lambda array: np.asarray(array)[5:],
    "one number": lambda array: array[7:8, 3:4].reshape(()),
    "other dtype": lambda array: array.view(np.uint16),
    "repeated": lambda array: np.broadcast_to(array[3], (5, 33)),
    "fields": lambda array: array.reshape(-1)[:64].view([("a", np.float32), ("b", np.int32)])["b"],
}


class Rows:
    """Item i is row i of an array, one more for each time that it was made here where `counts`."""

    def __init__(self, array: Any, counts: bool = False) -> None:
        self.array, self.counts = array, counts

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self.counts:
            self.array[number] += 1
        return {"row": self.array[number]}


def decode(records: Any) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = records.collate(records.payloads)
    return arrays


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", VALUES)
    return tmp_path / "rows.npy"


def copied_bytes(dataset: Any) -> int:
    """How much memory processes share for the arrays of a catalog."""
    with RecordReader(Catalog.of(dataset)) as reader:
        _, descriptor = Setup.of(reader, decode)
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
    return size


def rows_by_process(dataset: Any) -> NDArray[Any]:
    with RecordReader(Catalog.of(dataset)) as reader, DecodeProcesses(reader, decode, 1) as processes:
        return processes(IDS, None).features["row"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_view_of_a_map_is_found_again_in_its_file(file: Path, mode: Any, view: str) -> None:
    made = VIEWS[view](np.load(file, mmap_mode=mode))
    place = place_of_array(made)
    assert place is not None
    found = array_at(*place)
    assert (found.dtype, found.strides, found.flags.writeable) == (made.dtype, made.strides, made.flags.writeable)
    np.testing.assert_array_equal(found, made, strict=True)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_processes_copy_nothing_of_a_map(file: Path, mode: Any) -> None:
    dataset = Rows(np.load(file, mmap_mode=mode))
    assert copied_bytes(dataset) < VALUES.nbytes / 4 < copied_bytes(Rows(VALUES))
    np.testing.assert_array_equal(rows_by_process(dataset), VALUES[IDS])


def test_a_tensor_over_a_map_is_not_copied(file: Path) -> None:
    dataset = Rows(torch.from_numpy(np.load(file, mmap_mode="r+")))
    assert copied_bytes(dataset) < VALUES.nbytes / 4
    np.testing.assert_array_equal(rows_by_process(dataset), VALUES[IDS])


def test_what_a_process_writes_to_a_map_stays_there(file: Path) -> None:
    dataset = Rows(np.load(file, mmap_mode="r+"), counts=True)
    with RecordReader(Catalog.of(dataset)) as reader, DecodeProcesses(reader, decode, 1) as processes:
        dataset.array[:] = VALUES  # `Catalog.of` makes the first and the last item
        made = [processes(np.array([4, 10]), None).features["row"] for _ in range(2)]
    np.testing.assert_array_equal(made[1], made[0] + 1)
    np.testing.assert_array_equal(np.load(file), VALUES)


def test_what_was_written_to_a_map_without_its_file_is_copied(file: Path) -> None:
    private = np.load(file, mmap_mode="c")
    private += 1
    assert place_of_array(private) is None
    np.testing.assert_array_equal(rows_by_process(Rows(private)), VALUES[IDS] + 1)


def test_a_map_of_a_file_that_is_gone_is_copied(file: Path) -> None:
    mapped = np.load(file, mmap_mode="r")
    file.unlink()
    np.testing.assert_array_equal(rows_by_process(Rows(mapped)), VALUES[IDS])


def test_a_map_of_a_file_that_has_another_one_in_its_place_is_copied(file: Path) -> None:
    mapped = np.load(file, mmap_mode="r")
    other = file.with_name("other.npy")
    np.save(other, VALUES + 1)
    other.replace(file)
    np.testing.assert_array_equal(rows_by_process(Rows(mapped)), VALUES[IDS])


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_replaced_later_is_named(file: Path, is_replaced: bool) -> None:
    dataset = Rows(np.load(file, mmap_mode="r"))
    with RecordReader(Catalog.of(dataset)) as reader, DecodeProcesses(reader, decode, 1) as processes:
        other = file.with_name("other.npy")
        np.save(other, VALUES + 1)
        other.replace(file) if is_replaced else file.unlink()
        with pytest.raises(ChangedDataError, match=rf"{file}, which an array .* was replaced or removed\."):
            processes(IDS, None)


def test_arrays_in_memory_have_no_place() -> None:
    assert place_of_array(VALUES) is None
    assert place_of_array(torch.ones(100_000).numpy()) is None
    assert place_of_array(np.frombuffer(b"abcd", np.uint8)) is None
    assert place_of_array(np.array([{}, None])) is None


def test_threads_and_processes_read_the_same_of_a_map(file: Path) -> None:
    dataset = Rows(np.load(file, mmap_mode="r")[::-1])
    with RecordReader(Catalog.of(dataset)) as reader:
        by_thread = read_and_decode(reader, decode, IDS, None).features["row"]
    np.testing.assert_array_equal(rows_by_process(dataset), by_thread)
