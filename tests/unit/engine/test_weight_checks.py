"""Ranks whose weights part are found out at the next checkpoint or check, which says where, and since when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numpy_training import Data, NumpyAdapter, Run, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.saves import SavePolicy
from hvdtrain.engine.state_sync import assert_equal_weights
from hvdtrain.engine.weight_differences import divergence
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import State, weights_digest

PARTED = 4  # the update in which they part, from 0: the checkpoint before it is that of step 4
LIMITS = RunLimits(2, checkpoint_interval=2)  # 6 steps


def open_parting(bad_rank: int, change: Callable[[NumpyAdapter], None]) -> Callable[..., NumpyAdapter]:
    """An adapter that changes its weights by itself on one rank, in one update."""

    class Parting(NumpyAdapter):
        def train_step(self, batch: Any, step: int, lr: float) -> None:
            super().train_step(batch, step, lr)
            if step == PARTED and self._comm.topology.rank == bad_rank:
                change(self)

    return Parting


def nudge(adapter: NumpyAdapter) -> None:
    adapter.model["weights"].reshape(-1)[[0, 7]] += [0.25, -0.5]
    adapter.model["bias"][1] += 1e-3


def refusals(setting: Setting, ranks: int, limits: RunLimits = LIMITS, writers: int = 1) -> list[DivergenceError]:
    setting = replace(setting, writers=writers)
    errors = []
    for error in run_on_ranks(ranks, lambda comm: train(setting, comm, limits, None, None)):
        assert isinstance(error, DivergenceError), error
        assert error.joint
        errors.append(error)
    assert len({str(error) for error in errors}) == 1
    return errors


PARTINGS = {
    "with the one that is written": (2, 1, 1, "1 differ from rank 0's"),
    "the one that is written, with all others": (3, 0, 1, "1, 2 differ from rank 0's"),
    "those that are not written": (3, 2, 1, "2 differ from rank 0's"),
    "parts of one checkpoint": (2, 1, 2, "1 differ from rank 0's"),
    "a part, and what is not written": (4, 1, 2, "1 differ from rank 0's"),
}


@pytest.mark.parametrize("policy", [SavePolicy(), SavePolicy(in_background=True, goes_on=True)], ids=["sync", "async"])
@pytest.mark.parametrize("case", PARTINGS)
def test_weights_that_differ_are_found_at_the_next_checkpoint_which_is_not_written(
    case: str, policy: SavePolicy, data: Data, tmp_path: Path
) -> None:
    ranks, bad_rank, writers, which = PARTINGS[case]
    setting = Setting(data, tmp_path, open_adapter=open_parting(bad_rank, nudge), save_policy=policy)
    error = refusals(setting, ranks, writers=writers)[0]
    assert error.fact == f"At the checkpoint of step 6 the weights of rank {which}."
    assert error.conflict.startswith(
        "They were equal after step 4. 2 of 3 arrays differ: 'weights' in 2 of 15 numbers, by 0.5 at most; "
        "'bias' in 1 of 3 numbers, by 0.001 at most."
    )
    assert [path.name for path in setting.store().paths()] == ["step_00000002", "step_00000003", "step_00000004"]
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == "step_00000004"


def test_training_goes_on_from_the_last_checkpoint_of_equal_weights(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=open_parting(1, nudge))
    refusals(setting, 2)
    newest: Checkpoint | None = setting.store().newest()
    assert newest is not None

    def on(folder: Path, start: Checkpoint | None) -> list[Run]:
        sound = Setting(data, folder)
        position, state = (start.position, start.state) if start is not None else (None, None)
        return all_well(run_on_ranks(2, lambda comm: train(sound, comm, LIMITS, position, state)))

    resumed, whole = on(tmp_path, newest)[0], on(tmp_path / "whole", None)[0]
    assert resumed.outcome.weights_hash == whole.outcome.weights_hash


@pytest.mark.parametrize("per_call", [1, 4])
def test_a_check_between_checkpoints_finds_them_earlier(per_call: int, data: Data, tmp_path: Path) -> None:
    limits = RunLimits(2, check_weights_every=5, log_interval=50, steps_per_call=per_call)
    error = refusals(Setting(data, tmp_path, open_adapter=open_parting(1, nudge)), 3, limits)[0]
    assert error.fact == "After step 5 the weights of rank 1 differ from rank 0's."
    assert error.conflict.startswith("They were equal after step 3. 2 of 2 arrays differ: 'weights' in 2 of 15")


def test_a_check_changes_nothing_and_lets_ranks_have_statistics_of_their_own(data: Data, tmp_path: Path) -> None:
    def outcome(folder: str, limits: RunLimits) -> list[Run]:
        setting = Setting(data, tmp_path / folder)
        return all_well(run_on_ranks(3, lambda comm: train(setting, comm, limits, None, None)))

    checked, plain = outcome("checked", RunLimits(2, check_weights_every=1)), outcome("plain", RunLimits(2))
    assert [run.outcome for run in checked] == [run.outcome for run in plain]


def test_one_process_compares_nothing(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=open_parting(0, nudge))
    limits = replace(LIMITS, check_weights_every=1)
    assert all_well(run_on_ranks(1, lambda comm: train(setting, comm, limits, None, None)))[0].outcome.finished


DIFFERENCES: dict[str, tuple[State, str]] = {
    "a sign of zero": ({"model/w": np.array([0.0, -0.0])}, "'w' in 1 of 2 numbers, by 0 at most"),
    "not a number": ({"model/w": np.array([0.0, np.nan])}, "'w' in 1 of 2 numbers, by nan at most"),
    "a count": ({"model/w": np.zeros(2), "model/n": np.array(7)}, "'n' in 1 of 1 numbers, by 4 at most"),
    "a flag": ({"model/w": np.zeros(2), "model/f": np.array([False])}, "'f' in 1 of 1 numbers, by 1 at most"),
    "a shape": ({"model/w": np.zeros((1, 2))}, "'w' has another shape or type, or is missing"),
    "an array less": ({}, "'w' has another shape or type, or is missing"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_what_differs_is_told(case: str) -> None:
    state, told = DIFFERENCES[case]
    common: State = {"model/w": np.zeros(2)}
    common |= {"model/n": np.array(3)} if "model/n" in state else {}
    common |= {"model/f": np.array([True])} if "model/f" in state else {}

    def work(comm: ThreadCommunicator) -> str:
        return assert_equal_weights(comm, state if comm.topology.rank == 1 else common, "After training", known=3)

    for error in run_on_ranks(3, work):
        assert isinstance(error, DivergenceError)
        assert f"They were equal after step 3. 1 of {len(common)} arrays differ: {told}." in error.conflict


def test_weights_that_have_become_equal_since_are_told_as_such() -> None:
    """As by local SGD's next average, before all ranks learn what a writing thread has found."""

    def work(comm: ThreadCommunicator) -> None:
        raise divergence(comm, {"model/w": np.zeros(2)}, 0, "At the checkpoint of step 6", 4)

    for error in run_on_ranks(2, work):
        assert isinstance(error, DivergenceError)
        assert error.fact == "At the checkpoint of step 6 ranks had different weights, which have become equal since."
        assert error.conflict == "They were equal after step 4. The ranks did not train one model."


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_are_compared_with_their_replicas(stages: int) -> None:
    """The last rank differs from the first one that has its stage."""

    def work(comm: ThreadCommunicator) -> str:
        rank = comm.topology.rank
        stage = rank % stages
        weights = np.full(1000, stage, np.float32)
        weights[500] += rank == comm.topology.size - 1
        state: State = {f"model/layer{stage}": weights, f"optimizer/layer{stage}": np.array(rank)}
        return assert_equal_weights(comm, state, "After step 9", stage)

    for error in run_on_ranks(2 * stages, work):
        assert isinstance(error, DivergenceError)
        last = 2 * stages - 1
        assert error.fact.startswith(f"After step 9 the weights of rank {last} differ from those of the first rank")
        assert f"1 of 1 arrays differ: 'layer{stages - 1}' in 1 of 1,000 numbers, by 1 at most." in error.conflict


CHANGED: dict[str, State] = {
    "value": {"model/w": np.array([1.0, 2.5])},
    "two signs": {"model/w": np.array([-1.0, -2.0])},
    "order": {"model/w": np.array([2.0, 1.0])},
    "dtype": {"model/w": np.array([1.0, 2.0], np.float32)},
    "shape": {"model/w": np.array([[1.0, 2.0]])},
    "name": {"model/v": np.array([1.0, 2.0])},
    "one more": {"model/w": np.array([1.0, 2.0]), "model/x": np.zeros(0)},
}


@pytest.mark.parametrize("change", CHANGED)
def test_any_difference_in_weights_changes_their_digest(change: str) -> None:
    base: State = {"model/w": np.array([1.0, 2.0])}
    assert weights_digest(CHANGED[change]) != weights_digest(base)
    assert weights_digest({**base, "optimizer/w": np.zeros(1)}) == weights_digest(base)
    transposed: State = {"model/w": np.arange(6.0).reshape(2, 3).T}
    assert weights_digest(transposed) == weights_digest({"model/w": transposed["model/w"].copy(order="C")})
