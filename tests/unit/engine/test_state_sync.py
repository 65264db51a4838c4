"""Ranks are made equal bit by bit, whatever they held, and are found out where they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.numpy_training import NumpyAdapter, NumpyTask
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.engine import state_sync
from hvdtrain.engine.state_sync import assert_equal_weights, average_rank_local_state, broadcast_state, weights_hash
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import State, as_numbers, bits_dtype, like_numbers

DTYPES = ["?", "u1", "i4", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "S7"]

states = st.dictionaries(
    st.from_regex("(model|optimizer)/[a-z./]{1,12}", fullmatch=True),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(
            np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
        )
    ),
    max_size=6,
)


def assert_bit_equal(one: State, other: State) -> None:
    assert list(one) == list(other)
    for name, array in one.items():
        got = other[name]
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


@given(state=states, size=st.integers(1, 3), piece=st.sampled_from([1, 3, 64, 2**26]))
@settings(max_examples=60)
def test_every_rank_receives_rank_0s_arrays(state: State, size: int, piece: int) -> None:
    def work(comm: ThreadCommunicator) -> State:
        return broadcast_state(comm, state if comm.topology.is_root else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_sync, "_PIECE_BYTES", piece)
        for received in all_well(run_on_ranks(size, work)):
            assert_bit_equal(state, received)


def test_arrays_in_any_memory_layout() -> None:
    state = {
        "model/a": np.arange(6.0).reshape(2, 3).T,
        "model/b": np.arange(10)[::-2],
        "model/c": np.asfortranarray(np.eye(3)),
        "model/d": np.arange(4, dtype="<u2").view(bits_dtype("bfloat16", 2))[::2],
        "model/e": np.array(7, "u1").view(bits_dtype("float8_e5m2", 1)),
        "model/f": np.asarray(b"text"),
    }
    for received in all_well(run_on_ranks(2, lambda comm: broadcast_state(comm, state))):
        assert_bit_equal(state, received)


def test_what_other_ranks_hold_does_not_matter() -> None:
    def work(comm: ThreadCommunicator) -> State:
        return broadcast_state(
            comm, {f"model/{comm.topology.rank}": np.full(3 + comm.topology.rank, comm.topology.rank)}
        )

    for received in all_well(run_on_ranks(3, work)):
        assert_bit_equal({"model/0": np.full(3, 0)}, received)


def test_rank_0_must_have_something_to_give() -> None:
    errors = run_on_ranks(2, lambda comm: broadcast_state(comm, None))
    assert isinstance(errors[0], ValueError)


def test_an_adapter_can_load_what_it_received() -> None:
    def work(comm: ThreadCommunicator) -> Any:
        adapter = NumpyAdapter(NumpyTask(), comm, seed=comm.topology.rank)
        adapter.load_state(broadcast_state(comm, adapter.state() if comm.topology.is_root else None))
        return assert_equal_weights(comm, adapter.state(), "After loading")

    assert len(set(all_well(run_on_ranks(3, work)))) == 1


def test_drifting_buffers_become_their_mean_and_nothing_else_changes() -> None:
    def work(comm: ThreadCommunicator) -> tuple[State, State]:
        adapter = NumpyAdapter(NumpyTask(), comm, seed=1)
        adapter.model["running_mean"] = np.full(5, float(comm.topology.rank))
        before = adapter.state()
        average_rank_local_state(comm, adapter)
        return before, adapter.state()

    for before, after in all_well(run_on_ranks(4, work)):
        np.testing.assert_array_equal(after["model/running_mean"], np.full(5, 1.5))
        assert_bit_equal({**before, "model/running_mean": after["model/running_mean"]}, after)


class Buffers(NumpyAdapter):
    """Has these instead of its own."""

    def __init__(self, comm: ThreadCommunicator, buffers: State, stage: int | None = None) -> None:
        super().__init__(NumpyTask(), comm, seed=1)
        self.buffers, self.stage = buffers, stage

    def rank_local_state(self) -> State:
        return dict(self.buffers)

    def load_rank_local_state(self, buffers: State) -> None:
        self.buffers = self.buffers | buffers


def of_rank(rank: int) -> State:
    return {
        "model/count": np.array([rank, 5], np.int64),
        "model/phase": np.array([rank + 1j, 2.0], np.complex64),
        "model/seen": np.array(rank == 1),
        "model/bits": np.full(2, rank, "<u1").view(bits_dtype("float8_e4m3fn", 1)),
        "model/text": np.asarray(b"0123"[: rank + 1]),
        "model/mean": np.full(2, float(rank), np.float32),
        "model/none": np.zeros(0, np.int32),
    }


def test_means_of_floating_and_complex_numbers_and_rank_0s_of_everything_else() -> None:
    def work(comm: ThreadCommunicator) -> State:
        adapter = Buffers(comm, of_rank(comm.topology.rank))
        average_rank_local_state(comm, adapter)
        return adapter.buffers

    expected = of_rank(0) | {
        "model/phase": np.array([1 + 1j, 2.0], np.complex64),
        "model/mean": np.full(2, 1.0, np.float32),
    }
    for after in all_well(run_on_ranks(3, work)):
        assert_bit_equal(expected, after)


def test_bfloat16_becomes_the_mean_too() -> None:
    dtype = bits_dtype("bfloat16", 2)

    def work(comm: ThreadCommunicator) -> State:
        values = np.array([comm.topology.rank, -2.5 * comm.topology.rank], np.float32)
        adapter = Buffers(comm, {"model/low": like_numbers(values, dtype)})
        average_rank_local_state(comm, adapter)
        return adapter.buffers

    for after in all_well(run_on_ranks(3, work)):
        assert after["model/low"].dtype == dtype
        np.testing.assert_array_equal(as_numbers(after["model/low"]), [1.0, -2.5])


def test_equal_integers_are_compared_by_one_small_message() -> None:
    def work(comm: ThreadCommunicator) -> list[str]:
        average_rank_local_state(comm, Buffers(comm, {"model/count": np.arange(10_000)}))
        return comm.names

    assert all_well(run_on_ranks(2, work)) == [["allreduce max hvdtrain.buffers.same int64 (16,)"]] * 2


def test_each_stage_takes_what_the_first_replica_has() -> None:
    """Of four ranks with two stages the first two are the first replica."""

    def work(comm: ThreadCommunicator) -> State:
        stage = comm.topology.rank % 2
        adapter = Buffers(comm, {f"model/{stage}": np.array(comm.topology.rank)}, stage)
        average_rank_local_state(comm, adapter)
        return adapter.buffers

    after = all_well(run_on_ranks(4, work))
    assert [int(next(iter(buffers.values()))) for buffers in after] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model/bank": np.zeros((2, 3))}, "'bank' is float64 [2, 3] on rank 1, and float64 [1, 3] on rank 0"),
        ({"model/bank": np.zeros((1, 3), np.int64)}, "'bank' is int64 [1, 3] on rank 1, and float64 [1, 3] on rank 0"),
        ({}, "'bank' is missing on rank 1, and float64 [1, 3] on rank 0"),
    ],
)
def test_buffers_of_other_sizes_are_named_on_all_ranks(other: State, words: str) -> None:
    def work(comm: ThreadCommunicator) -> None:
        buffers = other if comm.topology.rank else {"model/bank": np.zeros((1, 3))}
        average_rank_local_state(comm, Buffers(comm, buffers))

    for error in run_on_ranks(3, work):
        assert isinstance(error, DivergenceError)
        assert error.joint
        assert error.fact == f"The buffer {words}."


@pytest.mark.parametrize("size", [2, 3, 7])
def test_equal_float32_buffers_stay_as_they_are(size: int) -> None:
    """So that averaging again, before a checkpoint say, changes nothing."""
    values = np.random.default_rng(1).normal(size=1000).astype(np.float32)

    def work(comm: ThreadCommunicator) -> Any:
        adapter = NumpyAdapter(NumpyTask(), comm, seed=1)
        adapter.model["running_mean"] = values.copy()
        average_rank_local_state(comm, adapter)
        return adapter.model["running_mean"]

    for after in all_well(run_on_ranks(size, work)):
        assert (after.dtype, after.tobytes()) == (values.dtype, values.tobytes())


def test_one_rank_averages_nothing() -> None:
    def work(comm: ThreadCommunicator) -> list[str]:
        average_rank_local_state(comm, NumpyAdapter(NumpyTask(), comm, seed=1))
        return comm.names

    assert all_well(run_on_ranks(1, work)) == [[]]


def test_ranks_that_differ_are_named_on_every_rank() -> None:
    def work(comm: ThreadCommunicator) -> str:
        return assert_equal_weights(
            comm, {"model/w": np.array([float(comm.topology.rank in (1, 3))])}, "After training"
        )

    for error in run_on_ranks(4, work):
        assert isinstance(error, DivergenceError)
        assert error.fact == "After training the weights of rank 1, 3 differ from rank 0's."
        assert error.joint


CHANGES: dict[str, State] = {
    "value": {"model/w": np.array([1.0, 2.5])},
    "sign of zero": {"model/w": np.array([1.0, 2.0]), "model/z": np.array(-0.0)},
    "dtype": {"model/w": np.array([1.0, 2.0], np.float32)},
    "shape": {"model/w": np.array([[1.0, 2.0]])},
    "name": {"model/v": np.array([1.0, 2.0])},
    "one more": {"model/w": np.array([1.0, 2.0]), "model/x": np.zeros(0)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_difference_in_weights_changes_the_hash(change: str) -> None:
    base: State = {"model/w": np.array([1.0, 2.0])}
    if change == "sign of zero":
        base["model/z"] = np.array(0.0)
    assert weights_hash(CHANGES[change]) != weights_hash(base)


def test_the_hash_knows_neither_order_nor_optimizer() -> None:
    one: State = {"model/a": np.ones(1), "model/b": np.zeros(1), "optimizer/a": np.ones(1)}
    other: State = {"optimizer/a": np.zeros(1), "model/b": np.zeros(1), "model/a": np.ones(1)}
    assert weights_hash(one) == weights_hash(other)
