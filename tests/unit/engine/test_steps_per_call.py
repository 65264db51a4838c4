"""Several steps in one call of the adapter are the same training, told by the same events."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numpy_training import Data, NumpyAdapter, Run, Setting, train
from support.ranks import all_well, run_on_ranks

from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.topology import Topology

EPOCHS, STEPS_PER_EPOCH = 2, 3
_DIFFERS = ("path", "memory")


def noisy(task: Any, comm: Communicator, seed: int) -> NumpyAdapter:
    return NumpyAdapter(task, comm, seed, noise=0.01)


@pytest.fixture
def setting(data: Data, tmp_path: Path) -> Setting:
    return Setting(data, tmp_path, open_adapter=noisy)


def alone(setting: Setting, limits: RunLimits) -> Run:
    return train(setting, SerialCommunicator(Topology.single()), limits, None, None)


def told(run: Run) -> list[Any]:
    """All events without what differs from run to run: times, paths and memory."""
    shown = []
    for event in run.events.events:
        fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
        shown.append((type(event), {k: v for k, v in fields.items() if "second" not in k and k not in _DIFFERS}))
    return shown


@pytest.mark.parametrize("steps_per_call", [2, 3, 8])
@pytest.mark.parametrize(
    ("log", "save", "most"), [(1, 0, None), (2, 0, None), (50, 2, None), (50, 0, 5), (50, 0, None)]
)
def test_the_training_is_the_same(setting: Setting, steps_per_call: int, log: int, save: int, most: int | None) -> None:
    limits = RunLimits(EPOCHS, max_steps=most, log_interval=log, checkpoint_interval=save)
    one = alone(replace(setting, folder=setting.folder / "one"), limits)
    several = alone(replace(setting, folder=setting.folder / "several"), replace(limits, steps_per_call=steps_per_call))
    assert told(several) == told(one)
    assert several.outcome == one.outcome
    for name, array in one.adapter.state().items():
        assert array.tobytes() == several.adapter.state()[name].tobytes(), name


def test_calls_are_as_long_as_what_is_due_allows(setting: Setting) -> None:
    run = alone(setting, RunLimits(EPOCHS, log_interval=50, steps_per_call=8))
    assert run.adapter.calls == [(0, 1), (1, 2), (3, 3)]  # the first step is logged, an epoch ends after three


@given(
    step=st.integers(0, 100),
    more=st.integers(1, 40),
    per_call=st.integers(1, 20),
    log=st.integers(1, 30),
    save=st.integers(0, 30),
)
def test_no_call_goes_past_what_is_due(step: int, more: int, per_call: int, log: int, save: int) -> None:
    limits = RunLimits(1, log_interval=log, checkpoint_interval=save, steps_per_call=per_call)
    count = limits.next_call(step, step + more)
    assert 1 <= count <= min(per_call, more)
    assert not any(limits.logs_after(inside) or limits.saves_after(inside) for inside in range(step + 1, step + count))
    assert count == min(per_call, more) or limits.logs_after(step + count)


@pytest.mark.parametrize("after", range(4))
def test_a_request_stops_all_ranks_at_the_end_of_a_call(setting: Setting, after: int) -> None:
    limits = RunLimits(30, log_interval=1000, steps_per_call=STEPS_PER_EPOCH)

    def stopped(comm: Communicator) -> Run:
        steps = 0

        def count(event: events.Event) -> None:
            nonlocal steps
            steps += isinstance(event, events.StepEnded)

        own = replace(setting, callbacks=(count,), total_steps=90)
        asked = (lambda: "request" if steps >= after else None) if comm.topology.rank == 1 else (lambda: None)
        return train(own, comm, limits, None, None, asked)

    first, second = all_well(run_on_ranks(2, stopped))
    assert first.outcome.stopped_by == "request (rank 1)"
    assert first.outcome.step == second.outcome.step < 90
    ends = {step + count for step, count in first.adapter.calls} | {0}
    assert first.outcome.step in ends
    newest = setting.store().newest()
    assert newest is not None
    assert newest.position.step == first.outcome.step
