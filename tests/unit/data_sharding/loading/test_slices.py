"""Slices of several ranks in one batch are what each of these ranks would have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import data_sharding as ds

BATCH, SIZE = 10, 4  # slices of 2, 3, 2, 3 records


def relative(records: ds.RecordBatch) -> dict[str, NDArray[Any]]:
    """What a record becomes depends on the others of its batch, and on its draws."""
    lengths = np.array([len(payload) for payload in records.payloads], np.float64)
    draws = np.zeros(len(lengths)) if records.random is None else records.random.uniform("shift")
    return {"length": lengths - lengths.mean() + draws}


@pytest.mark.parametrize("balance", ["records", "bytes"])
@pytest.mark.parametrize(("rank", "slices"), [(0, 4), (1, 2), (2, 2), (3, 1)])
def test_each_slice_is_read_and_decoded_by_itself(catalog: ds.Catalog, balance: Any, rank: int, slices: int) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=BATCH, seed=3, epoch=1, balance=balance)

    def batches(first: int, count: int) -> list[ds.LoadedBatch]:
        with (
            ds.RecordReader(catalog) as reader,
            ds.ShardLoader(plan, reader, relative, rank=first, size=SIZE, slices=count, augment=True) as loader,
        ):
            return list(loader)

    together, alone = batches(rank, slices), [batches(one, 1) for one in range(rank, rank + slices)]
    assert len(together) == plan.steps
    for step, batch in enumerate(together):
        parts = [of_rank[step] for of_rank in alone]
        np.testing.assert_array_equal(batch.ids, np.concatenate([part.ids for part in parts]))
        np.testing.assert_array_equal(batch.weights, np.concatenate([part.weights for part in parts]))
        lengths = np.concatenate([part.features["length"] for part in parts])
        np.testing.assert_array_equal(batch.features["length"], lengths)


def test_slices_whose_rows_have_other_shapes_are_refused(catalog: ds.Catalog) -> None:
    def padded(records: ds.RecordBatch) -> dict[str, NDArray[Any]]:
        longest = max(len(payload) for payload in records.payloads)
        return {"bytes": np.zeros((len(records), longest), np.uint8)}

    plan = ds.ShardPlan.for_catalog(catalog, global_batch=BATCH, seed=3, epoch=1)
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, padded, rank=0, size=SIZE, slices=4) as loader,
        pytest.raises(ds.PlanError, match="other arrays for one slice of a batch"),
    ):
        list(loader)
