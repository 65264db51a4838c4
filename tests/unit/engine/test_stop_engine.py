"""A run that was asked to stop at any moment, and is started again, is the run that was never interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numpy_training import Data, NumpyAdapter, NumpyTask, Run, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks
from support.torch_training import TorchRows, open_torch

from data_sharding import LoadedBatch
from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.task.task import Features
from hvdtrain.topology import Topology

EPOCHS = RunLimits(2, log_interval=2)
MANY_EPOCHS = RunLimits(15, log_interval=5)
STEPS_PER_EPOCH, LAST = 3, 6
BATCHES = 2 * (STEPS_PER_EPOCH + 2)  # 9 records to validate on are 2 batches


@dataclass
class Request:
    """Comes once this rank has been through that many batches, of training and validation together."""

    after: int
    batches: int = 0

    def asked(self) -> str | None:
        return "request" if self.batches >= self.after else None

    def counting(self, open_adapter: Callable[..., Any]) -> Callable[..., Any]:
        """An adapter that counts what it goes through."""

        def open_counting(*args: Any) -> Any:
            adapter = open_adapter(*args)
            for name in ("train_step", "eval_step"):
                setattr(adapter, name, self._counted(getattr(adapter, name)))
            return adapter

        return open_counting

    def _counted(self, step: Callable[..., None]) -> Callable[..., None]:
        def counted(batch: LoadedBatch, *args: Any) -> None:
            step(batch, *args)
            self.batches += 1

        return counted


def noisy(task: Any, comm: Communicator, seed: int) -> NumpyAdapter:
    return NumpyAdapter(task, comm, seed, noise=0.01)


def run(
    setting: Setting,
    comm: Communicator,
    after: int | None = None,
    resume: Run | None = None,
    limits: RunLimits = EPOCHS,
) -> Run:
    """From the beginning, or from where the stopped run `resume` left off; asked to stop after that many batches."""
    start = state = None
    if resume is not None:
        newest = setting.store().newest()
        assert newest is not None
        start, state = newest.position, newest.state
    if after is None:
        return train(setting, comm, limits, start, state)
    request = Request(after)
    counting = replace(setting, open_adapter=request.counting(setting.open_adapter))
    return train(counting, comm, limits, start, state, request.asked)


def alone() -> Communicator:
    return SerialCommunicator(Topology.single())


def validations(*runs: Run) -> list[tuple[int, Any]]:
    return [(event.step, event.values) for one in runs for event in one.events.of(events.Evaluated)]


def require_equal(one: Run, other: Run) -> None:
    assert one.outcome == other.outcome
    for name, array in one.adapter.state().items():
        assert array.tobytes() == other.adapter.state()[name].tobytes(), name


@pytest.fixture(params=["numpy", "torch"])
def setting(request: pytest.FixtureRequest, data: Data, tmp_path: Path) -> Setting:
    if request.param == "numpy":
        return Setting(data, tmp_path, open_adapter=noisy)
    return Setting(data, tmp_path, open_adapter=open_torch, task=TorchRows())


def test_stopped_after_any_batch_and_started_again(setting: Setting) -> None:
    """Validation included: a stopped one is done by the run that continues, no finished one is done twice."""
    whole = run(replace(setting, folder=setting.folder / "whole"), alone())
    for after in range(BATCHES) if isinstance(whole.adapter, NumpyAdapter) else (2, 4, 7):
        here = replace(setting, folder=setting.folder / f"after_{after}")
        stopped = run(here, alone(), after)
        assert stopped.outcome.stopped_by == "request"
        assert not stopped.outcome.finished
        newest = here.store().newest()
        assert newest is not None
        assert newest.position.step == stopped.outcome.step
        resumed = run(here, alone(), resume=stopped)
        require_equal(resumed, whole)
        assert validations(stopped, resumed) == validations(whole)


@pytest.mark.parametrize("per_call", [2, 3])
def test_steps_of_one_call_are_stopped_after_it(data: Data, tmp_path: Path, per_call: int) -> None:
    """With a checkpoint of what is trained then; the run goes on from inside what would have been one call."""
    setting = Setting(data, tmp_path, open_adapter=noisy)
    limits = replace(EPOCHS, log_interval=50, steps_per_call=per_call)
    whole = run(replace(setting, folder=tmp_path / "whole"), alone(), limits=replace(limits, steps_per_call=1))
    ends = []
    for after in range(BATCHES):
        here = replace(setting, folder=tmp_path / f"after_{after}")
        stopped = run(here, alone(), after, limits=limits)
        require_equal(run(here, alone(), resume=stopped, limits=replace(limits, steps_per_call=5)), whole)
        ends.append(stopped.outcome.step)
    assert {1, STEPS_PER_EPOCH, LAST} <= set(ends)
    assert STEPS_PER_EPOCH - 1 not in ends  # the second and the third step are one call


@dataclass
class Hanging(NumpyTask):
    """Storage or decoding hangs from that batch on, counted over training and validation, until the test ends."""

    first: int
    end: threading.Event
    batches: int = 0

    def decode(self, records: Sequence[bytes]) -> Features:
        self.batches += 1
        if self.batches > self.first:
            self.end.wait()
        return super().decode(records)


@pytest.mark.parametrize("after", [1, STEPS_PER_EPOCH + 1])
def test_reads_that_hang_do_not_keep_the_save_waiting(after: int, data: Data, tmp_path: Path) -> None:
    """In training and in validation: the end of the hanging read would be an error after the 60 s that it may take."""
    end = threading.Event()
    try:
        setting = Setting(data, tmp_path, open_adapter=noisy, task=Hanging(after, end))
        stopped = run(setting, alone(), after)
    finally:
        end.set()
    newest = setting.store().newest()
    assert newest is not None
    assert newest.position.step == stopped.outcome.step == min(after, STEPS_PER_EPOCH)


def test_stopped_in_any_set_of_a_validation(data: Data, tmp_path: Path) -> None:
    """All sets are measured again by the run that continues, and its history is that of the whole one."""
    setting = Setting(data, tmp_path, open_adapter=noisy, sets=("a", "b"), early_stopping=EarlyStopping("b/loss"))
    whole = run(replace(setting, folder=tmp_path / "whole"), alone())
    for after in range(STEPS_PER_EPOCH, STEPS_PER_EPOCH + 4):  # two batches of each set
        here = replace(setting, folder=tmp_path / f"after_{after}")
        stopped = run(here, alone(), after)
        assert (stopped.outcome.step, validations(stopped)) == (STEPS_PER_EPOCH, [])
        resumed = run(here, alone(), resume=stopped)
        require_equal(resumed, whole)
        assert validations(resumed) == validations(whole)


def test_stopped_again_and_again(setting: Setting) -> None:
    """Each run gets through one batch."""
    whole = run(replace(setting, folder=setting.folder / "whole"), alone())
    runs = [run(setting, alone(), 1)]
    while not runs[-1].outcome.finished:
        assert len(runs) <= LAST
        validating = runs[-1].outcome.step % STEPS_PER_EPOCH == 0
        runs.append(run(setting, alone(), 3 if validating else 1, resume=runs[-1]))
    require_equal(runs[-1], whole)


def test_a_request_after_the_last_batch_comes_too_late(setting: Setting) -> None:
    whole = run(setting, alone(), BATCHES)
    assert whole.outcome.finished
    assert whole.outcome.stopped_by == ""


def test_the_order_of_events(data: Data, tmp_path: Path) -> None:
    saved = ["CheckpointStarted", "CheckpointDurable"]

    def names(after: int) -> list[str]:
        told = run(Setting(data, tmp_path / str(after), open_adapter=noisy), alone(), after).events.events
        return [type(event).__name__ for event in told if not isinstance(event, events.StepEnded)]

    assert names(0) == ["RunStarted", *saved, "RunEnded"]
    assert names(2) == [
        "RunStarted",
        "EpochStarted",
        "Logged",
        "Logged",
        "CheckpointStarted",
        "CheckpointDurable",
        "RunEnded",
    ]
    start = ["RunStarted", "EpochStarted", *["Logged"] * 3]
    assert names(3) == [*start, *saved, "RunEnded"]
    assert names(4) == [*start, "EvalStarted", *saved, "RunEnded"]
    assert names(5) == [
        *start,
        "EvalStarted",
        "Evaluated",
        "EpochEnded",
        "CheckpointStarted",
        "CheckpointDurable",
        "RunEnded",
    ]


def test_a_run_that_resumes_and_is_stopped_at_once_leaves_its_checkpoint_alone(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=noisy)
    stopped = run(setting, alone(), 2)
    (path,) = setting.store().paths()
    before = (path / "manifest.json").stat().st_mtime_ns
    again = run(setting, alone(), 0, resume=stopped)
    assert again.outcome.step == 2
    assert again.outcome.stopped_by == "request"
    assert (path / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("after", [0, 1, 12])
def test_one_rank_is_asked_and_all_stop(data: Data, tmp_path: Path, size: int, after: int) -> None:
    setting = Setting(data, tmp_path, open_adapter=noisy, total_steps=45)

    def stop(comm: ThreadCommunicator) -> Run:
        return run(setting, comm, after if comm.topology.rank == size - 1 else 1000, limits=MANY_EPOCHS)

    elsewhere = replace(setting, folder=tmp_path / "whole")
    whole = all_well(run_on_ranks(size, lambda comm: run(elsewhere, comm, limits=MANY_EPOCHS)))
    stopped = all_well(run_on_ranks(size, stop))
    assert len({one.outcome.step for one in stopped}) == 1
    assert {one.outcome.stopped_by for one in stopped} == {f"request (rank {size - 1})"}
    resumed = all_well(run_on_ranks(size, lambda comm: run(setting, comm, resume=stopped[0], limits=MANY_EPOCHS)))
    for one in resumed:
        assert replace(one.outcome, metrics={}, weights_hash="") == replace(
            whole[0].outcome, metrics={}, weights_hash=""
        )
        for name in ("weights", "bias"):  # running means were averaged again, which rounds again
            assert one.adapter.model[name].tobytes() == whole[0].adapter.model[name].tobytes()
        np.testing.assert_allclose(one.adapter.model["running_mean"], whole[0].adapter.model["running_mean"], 1e-12)
