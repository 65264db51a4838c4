"""`BadRecord`: a record that user code refuses is named, or left out and counted, like a damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from data_sharding import (
    BadRecord,
    Catalog,
    CorruptRecordError,
    RecordBatch,
    RecordReader,
    ShardLoader,
    ShardPlan,
    write_shards,
)

BAD = (3, 4, 11)


def decode(records: RecordBatch) -> dict[str, NDArray[Any]]:
    numbers = np.array([int(record) for record in records])
    for number in numbers.tolist():
        if number in BAD:
            raise BadRecord(f"{number} is not a number to train on.")
    return {"number": numbers}


def by_label(records: RecordBatch) -> dict[str, NDArray[Any]]:
    """Refuses what it knows of a record beside its bytes."""
    assert records.labels is not None
    for label, number in zip(records.labels.tolist(), records.ids.tolist(), strict=True):
        assert label == 100 + number
        if number in BAD:
            raise BadRecord("no such label")
    return {"number": records.labels - 100}


class Numbers:
    """An object that refuses items itself."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> int:
        if number in BAD:
            raise BadRecord(f"{number} is not a number to train on.")
        return number


def catalogs(folder: Path) -> list[tuple[Catalog, Any]]:
    write_shards(folder, "n", (str(n).encode() for n in range(12)), 1)
    return [
        (Catalog.index(folder), decode),
        (Catalog.of(Numbers(), version="1"), lambda r: {"number": np.array(r.payloads)}),
        (Catalog.of(range(12), labels=np.arange(100, 112)), by_label),
    ]


@pytest.mark.parametrize(("global_batch", "processes"), [(5, 0), (1, 0), (5, 1)])
def test_they_are_left_out_and_counted(tmp_path: Path, global_batch: int, processes: int) -> None:
    for catalog, function in catalogs(tmp_path):
        plan = ShardPlan.for_catalog(catalog, global_batch=global_batch, seed=1, epoch=0)
        used: list[int] = []
        damaged: list[int] = []
        reasons: dict[int, str] = {}
        with (
            RecordReader(catalog, on_corrupt="mask") as reader,
            ShardLoader(plan, reader, function, rank=0, size=1, processes=processes) as loader,
        ):
            for batch in loader:
                used += batch.features["number"][batch.weights > 0].tolist()
                damaged += batch.damaged.tolist()
                reasons |= batch.reasons
        assert sorted(damaged) == list(BAD)
        said = {number: f"{number} is not a number to train on." for number in BAD}
        assert reasons == (dict.fromkeys(BAD, "no such label") if function is by_label else said)
        assert sorted(used) == [number for number in range(12) if number not in BAD]


@pytest.mark.parametrize("policy", ["raise", "mask"])
def test_one_that_must_be_used_is_named(tmp_path: Path, policy: Literal["raise", "mask"]) -> None:
    (files, _), (items, function), _ = catalogs(tmp_path)

    def refuse_all(_: RecordBatch) -> dict[str, NDArray[Any]]:
        raise BadRecord("everything is bad")

    cases = [(files, decode), (items, function)] if policy == "raise" else [(files, refuse_all)]
    for catalog, decoding in cases:
        plan = ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0, shuffle="none")
        with (
            RecordReader(catalog, on_corrupt=policy) as reader,
            pytest.raises(
                CorruptRecordError, match=r"ecord 3.*refused by.*not a number" if policy == "raise" else "everything"
            ),
            ShardLoader(plan, reader, decoding, rank=0, size=1) as loader,
        ):
            list(loader)
