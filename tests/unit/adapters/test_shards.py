"""The parts of a bucket are all of it, and what is cut into them comes back whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.adapters.gathered_state import join_slices
from hvdtrain.adapters.sync_state import part_of, pieces_of
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError


@given(st.integers(0, 1000), st.integers(1, 17))
def test_parts_follow_each_other_and_differ_by_one_number_at_most(numbers: int, size: int) -> None:
    parts = [part_of(numbers, rank, size) for rank in range(size)]
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == numbers
    lengths = [end - start for start, end in parts]
    assert max(lengths) - min(lengths) <= 1


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 9))
def test_pieces_of_all_ranks_are_all_numbers_once(lengths: list[int], size: int) -> None:
    seen = [list(pieces_of(lengths, rank, size)) for rank in range(size)]
    numbers = [(index, n) for pieces in seen for index, start, end in pieces for n in range(start, end)]
    assert numbers == [(index, n) for index, length in enumerate(lengths) for n in range(length)]
    for rank, pieces in enumerate(seen):
        start, end = part_of(sum(lengths), rank, size)
        assert sum(end - start for _, start, end in pieces) == end - start


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.sampled_from("fdBq"))),
    st.integers(1, 4),
    st.sampled_from([1, 40, 2**20]),
)
def test_slices_come_back_whole(arrays: dict[str, tuple[int, str]], size: int, message: int) -> None:
    """Of any dtypes, in messages of any size, on the ranks that keep them."""
    whole = {name: np.arange(length, dtype=kind) for name, (length, kind) in arrays.items()}

    def work(comm: ThreadCommunicator) -> Any:
        rank = comm.topology.rank
        parts = {name: array[slice(*part_of(array.size, rank, size))] for name, array in whole.items()}
        own = {name: part for name, part in parts.items() if part.size or rank == 0}
        if rank == size - 1:
            own["step"] = np.array(7, np.float32)
        return join_slices(comm, own, keeps=rank == 0, message_bytes=message)

    joined, *others = all_well(run_on_ranks(size, work))
    assert all(other == {} for other in others)
    assert joined.pop("step") == np.float32(7)
    assert joined.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[name], array, strict=True)


@pytest.mark.parametrize(
    ("options", "conflict"),
    [
        ({"compression": "fp16"}, "--compression fp16"),
        ({"reduce_op": "adasum"}, "--reduce-op adasum"),
        ({"sync_every": 4}, "--sync-every 4"),
        ({"gradient_sync": "horovod"}, "--gradient-sync horovod"),
        ({"sparse_gradients": "allgather"}, "--sparse-gradients allgather"),
        ({"optimizer": "lamb"}, "--optimizer lamb"),
        ({"optimizer": "lars"}, "--optimizer lars"),
    ],
)
def test_what_does_not_go_with_shards_is_named(options: dict[str, Any], conflict: str) -> None:
    with pytest.raises(UsageError, match=f"--shard optimizer is given with {conflict}"):
        TrainingOptions(shard="optimizer", **options)
