"""A run that is resumed from the checkpoint of any step is the run that was never interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Forker
from support.numpy_training import Data, NumpyAdapter, Recorder, Run, Setting, train
from support.ranks import all_well, run_on_ranks
from support.torch_training import TorchRows, open_torch

from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.named_arrays import State
from hvdtrain.topology import Topology

EVERY_STEP = RunLimits(2, log_interval=1, checkpoint_interval=1)
LAST = 6


def noisy(task: Any, comm: Communicator, seed: int) -> NumpyAdapter:
    return NumpyAdapter(task, comm, seed, noise=0.01)


@pytest.fixture(params=["numpy", "torch"])
def setting(request: pytest.FixtureRequest, data: Data, tmp_path: Path) -> Iterator[Setting]:
    if request.param == "numpy":
        yield Setting(data, tmp_path, open_adapter=noisy)
    else:
        yield Setting(data, tmp_path, open_adapter=open_torch, task=TorchRows())


def alone(setting: Setting, limits: RunLimits, start: Path | None = None) -> Run:
    checkpoint = read_checkpoint(start) if start else None
    position, state = (checkpoint.position, checkpoint.state) if checkpoint else (None, None)
    return train(setting, SerialCommunicator(Topology.single()), limits, position, state)


def measured(recorder: Recorder, after: int) -> list[Any]:
    """All reduced values from events after a step; times are not among them."""
    return [
        (type(event).__name__, event.step, event.samples, event.values)
        for event in recorder.events
        if isinstance(event, events.Logged | events.Evaluated) and event.step > after
    ]


def assert_bit_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert array.tobytes() == other[name].tobytes(), name


def test_resume_at_every_step(setting: Setting) -> None:
    whole = alone(setting, EVERY_STEP)
    folders = setting.store().paths()
    assert [int(folder.name.removeprefix("step_")) for folder in folders] == [*range(1, LAST + 1)]
    for step, folder in enumerate(folders, start=1):
        elsewhere = replace(setting, folder=setting.folder / f"from_{step}")
        resumed = alone(elsewhere, EVERY_STEP, folder)
        assert_bit_equal(resumed.adapter.state(), whole.adapter.state())
        assert resumed.outcome == whole.outcome
        if step < LAST:
            assert measured(resumed.events, after=step) == measured(whole.events, after=step)


def test_resume_at_every_step_in_keras(keras_forker: Forker, data: Data, tmp_path: Path) -> None:
    """In a process of its own: TensorFlow shall not meet torch in this one."""
    script = Path(__file__).parents[2] / "support" / "scripts" / "keras_resume.py"
    done = keras_forker.run_python([str(script), str(data.folder), str(tmp_path)], tmp_path)
    assert done.code == 0, done.stderr
    steps = [*range(1, LAST + 1)]
    assert json.loads(done.stdout) == {"steps": steps, "different": {}, "outcomes_differ": [], "foreign": []}


def test_stop_at_every_step_then_go_on(setting: Setting) -> None:
    """The same with `max_steps`: here each run also evaluates and saves where it stops."""
    whole = alone(replace(setting, folder=setting.folder / "whole"), RunLimits(2))
    for step in range(1, LAST + 1):
        folder = setting.folder / f"step_{step}"
        stopped = alone(replace(setting, folder=folder), RunLimits(2, max_steps=step))
        assert stopped.outcome.step == step
        newest = replace(setting, folder=folder).store().paths()[-1]
        resumed = alone(replace(setting, folder=folder), RunLimits(2), newest)
        assert_bit_equal(resumed.adapter.state(), whole.adapter.state())
        assert resumed.outcome == whole.outcome


def test_evaluation_draws_no_number_that_training_would_have_drawn(setting: Setting) -> None:
    validated = alone(replace(setting, folder=setting.folder / "a"), RunLimits(2))
    unvalidated = alone(replace(setting, folder=setting.folder / "b", sets=()), RunLimits(2))
    states = [run.adapter.state() for run in (validated, unvalidated)]
    for state in states:
        state.pop("model/running_mean", None)  # NumpyAdapter changes it in evaluation, too
    assert_bit_equal(*states)


def test_another_world_size_may_go_on(data: Data, tmp_path: Path) -> None:
    """Interrupted on 3 ranks, continued on 2: as one process, to float tolerance, with the same samples."""
    setting = Setting(data, tmp_path, open_adapter=noisy)
    whole = alone(replace(setting, folder=tmp_path / "whole"), RunLimits(2))
    all_well(run_on_ranks(3, lambda comm: train(setting, comm, RunLimits(2, max_steps=4), None, None)))
    newest = setting.store().newest()
    assert newest is not None
    runs = all_well(run_on_ranks(2, lambda comm: train(setting, comm, RunLimits(2), newest.position, newest.state)))
    assert runs[0].outcome.samples_seen == whole.outcome.samples_seen
    for name in ("weights", "bias"):
        np.testing.assert_allclose(runs[0].adapter.model[name], whole.adapter.model[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("step", range(1, LAST + 1))
def test_ranks_that_resume_hold_what_they_would_have_held(data: Data, tmp_path: Path, step: int) -> None:
    """On 2 ranks, with buffers that drift apart between checkpoints: what is saved stands for all ranks."""
    setting = Setting(data, tmp_path, open_adapter=noisy)
    whole = all_well(run_on_ranks(2, lambda comm: train(setting, comm, EVERY_STEP, None, None)))[0]
    saved = read_checkpoint(setting.folder / "checkpoints" / f"step_{step:08d}")
    elsewhere = replace(setting, folder=tmp_path / "resumed")
    resumed = all_well(run_on_ranks(2, lambda comm: train(elsewhere, comm, EVERY_STEP, saved.position, saved.state)))
    for run in resumed:
        assert_bit_equal(run.adapter.state(), whole.adapter.state())
        assert run.outcome == whole.outcome
