"""What follows an epoch is read while its last batch is trained on; never two at once; nothing reads on at the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.numpy_training import NumpyAdapter, NumpyTask, Setting, train, write_data

from data_sharding import LoadedBatch
from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.engine.limits import RunLimits
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.task import Features
from hvdtrain.topology import Topology

TRAIN, VALIDATION = 24, 16  # whole batches of 8
EPOCHS = 3
DEADLINE_S = 60


@dataclass
class Decoded(NumpyTask):
    """Counts the records that were decoded, and the most calls that ran at one time."""

    records: int = 0
    running: int = 0
    most: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def decode(self, records: Sequence[bytes]) -> Features:
        with self.changed:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return super().decode(records)
        finally:
            with self.changed:
                self.running -= 1
                self.records += len(records)
                self.changed.notify_all()

    def has_decoded_more_than(self, records: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.records > records, DEADLINE_S)


class Waiting(NumpyAdapter):
    """Works on the last batch of an epoch, of training or validation, until a record that follows it is decoded."""

    used = 0
    waits = 0
    ends: frozenset[int]

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._wait_at_an_end(batch)
        super().train_step(batch, step, lr)

    def eval_step(self, batch: LoadedBatch) -> None:
        self._wait_at_an_end(batch)
        super().eval_step(batch)

    def _wait_at_an_end(self, batch: LoadedBatch) -> None:
        self.used += len(batch.ids)
        if self.used in self.ends:
            self.waits += 1
            assert self._task.has_decoded_more_than(self.used)


def setting_of(folder: Path, *sets: str) -> Setting:
    def open_waiting(*args: Any) -> Waiting:
        adapter = Waiting(*args)
        passes = [TRAIN, *[VALIDATION] * len(sets)] * EPOCHS
        adapter.ends = frozenset(sum(passes[:count]) for count in range(1, len(passes)))  # nothing follows the last
        return adapter

    return Setting(write_data(folder, TRAIN, VALIDATION), folder, open_adapter=open_waiting, task=Decoded(), sets=sets)


def alone() -> SerialCommunicator:
    return SerialCommunicator(Topology.single())


@pytest.fixture(autouse=True)
def nothing_reads_on() -> Any:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("data_sharding-"):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("sets", [(UNNAMED,), (), ("a", "b")])
@pytest.mark.parametrize("per_call", [1, 2, 5])
def test_what_follows_is_read_during_the_last_step(tmp_path: Path, sets: tuple[str, ...], per_call: int) -> None:
    rule = EarlyStopping("a/loss" if "a" in sets else "loss")
    setting = replace(setting_of(tmp_path, *sets), early_stopping=rule)
    run = train(setting, alone(), RunLimits(EPOCHS, steps_per_call=per_call), None, None)
    assert run.adapter.waits == EPOCHS * (1 + len(sets)) - 1
    assert setting.task.most == 1
    assert setting.task.records == EPOCHS * (TRAIN + VALIDATION * len(sets))  # and no record twice


def test_what_is_not_needed_is_given_up(tmp_path: Path) -> None:
    """The epoch after the one that ended the training by itself was begun, and its threads end with the run."""
    impatient = replace(setting_of(tmp_path, UNNAMED), early_stopping=EarlyStopping(patience=1, min_delta=1e6))
    run = train(impatient, alone(), RunLimits(EPOCHS), None, None)
    assert run.outcome.stopped_early is not None
    assert run.outcome.epochs == 2
    assert impatient.task.records > 2 * (TRAIN + VALIDATION)


def test_a_run_that_fails_gives_it_up_too(tmp_path: Path) -> None:
    class Failing(Waiting):
        def eval_step(self, batch: LoadedBatch) -> None:
            super().eval_step(batch)
            if self.waits == 2:
                raise RuntimeError("broken")

    setting = setting_of(tmp_path, UNNAMED)

    def open_failing(*args: Any) -> Failing:
        adapter = Failing(*args)
        adapter.ends = frozenset((TRAIN, TRAIN + VALIDATION))
        return adapter

    with pytest.raises(RuntimeError, match="broken"):
        train(replace(setting, open_adapter=open_failing), alone(), RunLimits(EPOCHS), None, None)
