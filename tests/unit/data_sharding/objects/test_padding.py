"""Sequences of several lengths are padded to the longest of the global batch, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_sharding import BadRecord, Catalog, RecordBatch, RecordReader, ShardingError, ShardLoader, ShardPlan

LENGTHS = st.lists(st.integers(0, 40), min_size=4, max_size=40)


def sequences(lengths: list[int]) -> list[dict[str, Any]]:
    """Item i is i + 1, so many times."""
    return [{"tokens": [number + 1] * length, "number": number} for number, length in enumerate(lengths)]


def decode(records: RecordBatch) -> dict[str, NDArray[Any]]:
    assert records.collate is not None
    return records.collate(records.payloads)


def batches(catalog: Catalog, rank: int, size: int, shuffle: Any, processes: int = 0) -> list[dict[str, NDArray[Any]]]:
    plan = ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0, shuffle=shuffle)
    with (
        RecordReader(catalog) as reader,
        ShardLoader(plan, reader, decode, rank=rank, size=size, processes=processes) as loader,
    ):
        return [batch.features for batch in loader]


@given(LENGTHS, st.integers(2, 4), st.sampled_from(["global", "length", "none"]), st.sampled_from([(), (8, 50)]))
def test_all_ranks_have_the_shape_that_one_has(
    lengths: list[int], size: int, shuffle: str, pad_to: tuple[int, ...]
) -> None:
    catalog = Catalog.of(sequences(lengths), pad={"tokens": 0}, pad_to=pad_to, version="1")
    assert catalog.lengths.tolist() == lengths
    one = batches(catalog, 0, 1, shuffle)
    parts = [batches(catalog, rank, size, shuffle) for rank in range(size)]
    for step, whole in enumerate(one):
        joined = np.concatenate([part[step]["tokens"] for part in parts])
        assert joined.tolist() == whole["tokens"].tolist()
        longest = max(lengths[number] for number in whole["number"])
        assert whole["tokens"].shape[1] == next((length for length in pad_to if length >= longest), longest)
        for row, number in zip(whole["tokens"], whole["number"], strict=True):
            assert row.tolist() == [number + 1] * lengths[number] + [0] * (len(row) - lengths[number])


class Refusing(list[dict[str, Any]]):
    """Item 1 is refused once it was measured."""

    def __getitem__(self, number: Any) -> Any:
        if number == 1:
            raise BadRecord("it is the second")
        return super().__getitem__(number)


def test_a_masked_item_has_the_shape_of_the_others_on_all_ranks() -> None:
    """Ranks that have nothing else: what stands in for it is no longer than the step's longest."""
    lengths = [2, 3, 1, 2, 7, 7, 6, 7]
    catalog = Catalog.of(Refusing(sequences(lengths)), pad={"tokens": 0}, lengths=np.array(lengths), version="1")
    plan = ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0, shuffle="none")
    shapes = []
    for rank in range(4):
        with (
            RecordReader(catalog, on_corrupt="mask") as reader,
            ShardLoader(plan, reader, decode, rank=rank, size=4) as loader,
        ):
            shapes.append([batch.features["tokens"].shape for batch in loader])
    assert shapes == [[(1, 3), (1, 7)]] * 4


def test_processes_and_given_lengths_and_several_parts() -> None:
    rows = [{"a": np.full((n, 2), n, np.int16), "b": [0.5] * (n + 1), "size": n + 1} for n in range(8)]
    sizes = np.array([row["size"] for row in rows])
    catalog = Catalog.of(rows, pad={"a": -1, "b": -100}, lengths=sizes, version="1")
    first, *_ = batches(catalog, 1, 2, "none", processes=1)
    assert first["a"].shape == (2, 4, 2)
    assert (first["a"].dtype, first["b"].dtype) == (np.int16, np.float32)
    assert first["a"][0, :, 0].tolist() == [2, 2, -1, -1]
    assert first["b"][0].tolist() == [0.5, 0.5, 0.5, -100]


def test_columns_of_a_table_are_padded_too() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"tokens": [[1], [2, 2, 2], [3, 3]], "label": [0, 1, 2]})
    catalog = Catalog.of(table, pad={"tokens": 0}, version="1")
    with RecordReader(catalog) as reader:
        assert decode(reader.load(np.array([0, 1])))["tokens"].tolist() == [[1, 0, 0], [2, 2, 2]]
        assert decode(reader.load(np.array([0]), longest=2))["tokens"].tolist() == [[1, 0]]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_floats_are_never_cut_off(size: int) -> None:
    items = [{"t": [1]}, {"t": [0.5, 0.25]}, {"t": [2]}, {"t": [3]}]
    catalog = Catalog.of(items, pad={"t": 0})
    with pytest.raises(ShardingError, match="'t' is float32 in some items, and int64 in the first one"):
        [batches(catalog, rank, size, "none") for rank in range(size)]


def test_torch_loaders_of_all_ranks_have_one_shape() -> None:
    torch = pytest.importorskip("torch")
    from data_sharding.adapters.torch import ShardBatchSampler, ShardDataset
    from data_sharding.adapters.torch import collate as as_tensors

    catalog = Catalog.of(sequences([1, 9, 2, 3, 7, 1, 2, 8]), pad={"tokens": 0}, version="1")
    plan = ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0)
    shapes = []
    for rank in range(2):
        sampler = ShardBatchSampler(plan, rank, 2)
        dataset = ShardDataset(catalog, decode)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=as_tensors)
        shapes.append([tuple(batch.features["tokens"].shape) for batch in loader])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda items: Catalog.of(items, pad={"words": 0}), "pad names 'words', and an item has 'tokens', 'number'"),
        (lambda items: Catalog.of(items, pad={"number": 0}), "pad names 'number'"),
        (lambda items: Catalog.of(items, pad={}), "names the parts"),
        (lambda items: Catalog.of(items, pad_to=[8]), "names the parts"),
        (lambda items: Catalog.of(items, pad={"tokens": 0}, pad_to=[0]), "pad_to"),
        (
            lambda items: Catalog.of(items, pad={"tokens": 0}, pad_to=[2]),
            "longest item has 3 elements, and pad_to ends",
        ),
        (
            lambda items: Catalog.of(items, pad={"tokens": 0}, lengths=[1]),
            r"lengths are an array of int64 of shape \[1\]",
        ),
        (lambda items: batches(Catalog.of(items * 2), 0, 1, "none"), r"shape \[1\].*pad=\{'tokens': 0\}"),
        (lambda items: batches(Catalog.of(items * 2, pad={"tokens": 0.5}), 0, 1, "none"), "filled up with 0.5"),
        (
            lambda items: batches(Catalog.of(items * 2, pad={"tokens": float("nan")}), 0, 1, "none"),
            "filled up with nan",
        ),
        (lambda items: Catalog.of(items, pad={"tokens": "x"}), "padded with 'x'"),
        (lambda items: Catalog.of(items, pad={"tokens": 0}, lengths=[1, -2, 1]), "Item 1 has the length -2"),
        (lambda items: Catalog.of(items, pad={"tokens": 0}, collate_fn=list), "pad and collate_fn"),
        (
            lambda items: batches(Catalog.of(items * 2, pad={"tokens": 0}, lengths=[1] * 6), 0, 1, "none"),
            "has 3 elements, and the step's longest item was to have 1",
        ),
    ],
)
def test_what_cannot_be_padded_is_refused(make: Callable[[list[Any]], object], words: str) -> None:
    with pytest.raises(ShardingError, match=f"(?s){words}"):
        make(sequences([1, 3, 2]))


def test_an_empty_list_does_not_decide_of_which_type_the_others_are() -> None:
    lists: list[list[float]] = [[], [1.5], [2.5, 3.0], []]
    catalog = Catalog.of([{"x": each} for each in lists], pad={"x": 0})
    with RecordReader(catalog) as reader:
        assert decode(reader.load(np.array([3, 0, 2])))["x"].tolist() == [[0, 0], [0, 0], [2.5, 3.0]]
        assert decode(reader.load(np.array([0, 3])))["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("first", "dtype"), [(torch.tensor([]), np.float32), (np.zeros(0), np.float64), (np.zeros(0, np.int16), np.int16)]
)
def test_an_empty_array_says_of_which_type_the_others_are(first: Any, dtype: Any) -> None:
    catalog = Catalog.of([{"x": each} for each in (first, np.array([1, 2]), np.array([3]))], pad={"x": 0})
    with RecordReader(catalog) as reader:
        assert decode(reader.load(np.array([1, 2])))["x"].dtype == dtype


def test_items_are_not_made_to_learn_of_a_type_that_is_known() -> None:
    made: list[int] = []

    class Items:
        def __len__(self) -> int:
            return 400

        def __getitem__(self, number: int) -> dict[str, Any]:
            made.append(number)
            if number == 7:
                raise ValueError("broken")
            return {"x": np.zeros((0, 4), np.float32), "y": [] if number < 9 else [1.5]}

    catalog = Catalog.of(Items(), lengths=np.ones(400, np.int64), pad={"y": 0})
    made.clear()  # the fingerprint has looked at some
    with RecordReader(catalog) as reader:
        assert decode(reader.load(np.array([0, 1])))["x"].shape == (2, 0, 4)
    assert max(made) <= 7


@pytest.mark.parametrize("pad_to", [np.array([4, 8]), torch.tensor([4, 8]), {4, 8}, [8, 4]])
def test_lengths_to_pad_to_may_be_of_any_kind(pad_to: Any) -> None:
    with RecordReader(Catalog.of([{"x": [1]}, {"x": [2, 3]}], pad={"x": 0}, pad_to=pad_to)) as reader:
        assert decode(reader.load(np.array([0, 1])))["x"].shape == (2, 4)


def test_bytes_are_not_filled_up_with_a_number() -> None:
    with RecordReader(Catalog.of([{"x": [b"a"]}, {"x": [b"a", b"b\0"]}], pad={"x": 0})) as reader:
        records = reader.load(np.array([0, 1]))
        with pytest.raises(ShardingError, match="no number of this type"):
            decode(records)
