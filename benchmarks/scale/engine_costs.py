"""What the loop itself costs one rank of N: agreements of a step, of a save, of a stop and of a failure.

The real engine trains a tiny model that has no gradients to exchange, so that all bytes are those of agreements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.scale.stand_in import StandIn, sum_of_same
from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Sums
from hvdtrain.algorithms.lr_schedule import Schedule
from hvdtrain.audit.ledger import NoLedger
from hvdtrain.checkpoints.format import Position
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm import messages
from hvdtrain.comm.messages import agree
from hvdtrain.engine import stop_vote
from hvdtrain.engine.engine import Engine
from hvdtrain.engine.limits import RunLimits
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.supervisor.diagnosis import diagnose
from hvdtrain.launch.supervisor.worker_state import WorkerState

BATCH: Final = 4
STEPS: Final = 2048
_REPEATS: Final = 3  # the fastest counts: others were disturbed
_SAVES: Final = 7
_REFUSED: Final = "hvdtrain.refused"
_REFUSAL: Final = "There is no file /data/train-00000.tfrecord."


class TinyAdapter:
    """One array of weights, equal on all ranks, which each update changes."""

    stage: int | None = None
    counts = True
    worker_states = None
    pass_checks = None

    def __init__(self) -> None:
        self._weights = np.zeros(1000, np.float32)
        self._loss = 0.0

    def begin_epoch(self) -> None:
        pass

    def take_changes(self, comm: object) -> None:
        pass

    def train_steps(self, batches: Sequence[LoadedBatch], step: int, lrs: Sequence[float]) -> None:  # noqa: ARG002
        self._weights += 1.0
        self._loss += sum(float(batch.weights.sum()) for batch in batches)

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self.train_steps([batch], step, [lr])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def read_sums(self) -> Sums:
        loss, self._loss = self._loss, 0.0
        return Sums({"loss": loss}, 0.0)

    def take_part_times(self) -> dict[str, Any]:
        return {}

    def tell_parts(self, tell: object) -> None:
        pass

    def gather_state(self, comm: object, keeps: bool) -> bool:  # noqa: ARG002
        return False

    def state(self, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        return {"model/weights": self._weights.copy()}

    def view_state(self) -> dict[str, Any]:
        return self.state()

    def view_weights(self) -> dict[str, Any]:
        return self.state()

    def rank_local_state(self) -> dict[str, Any]:
        return {}

    def load_rank_local_state(self, buffers: object) -> None:
        pass


@dataclass(frozen=True)
class MadeUpData:
    """Implements `Source` and its `Epoch` and `Loader`: all that is read is made up."""

    size: int  # ranks
    steps: int = STEPS

    @property
    def num_records(self) -> int:
        return self.steps * BATCH * self.size

    def plan(self, _epoch: int) -> MadeUpData:
        return self

    def loader(self, _epoch: int, start_step: int) -> MadeUpData:
        return MadeUpData(self.size, self.steps - start_step)

    def __enter__(self) -> MadeUpData:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __iter__(self) -> Iterator[LoadedBatch]:
        ids, weights = np.arange(BATCH), np.ones(BATCH, np.float32)
        return (LoadedBatch(step, ids, weights, {}, float(BATCH * self.size)) for step in range(self.steps))

    def begin(self, epoch: int) -> None:
        pass

    def abandon(self) -> None:
        pass

    def decoded_again(self, epoch: int, ids: object) -> None:
        pass

    def describe(self, record_id: int) -> str:
        return f"record {record_id}"

    def reading(self) -> str:
        return ""


def summed(array: np.ndarray[Any, Any], size: int, name: str) -> np.ndarray[Any, Any]:
    """What ranks that all do the same add up to. Where each rank adds a bit of its own, those are the bits of all."""
    if name not in ("hvdtrain.stop.asked", "hvdtrain.stop.same", f"{_REFUSED}.who"):
        return sum_of_same(array, size, name)
    width = messages.RANK_BITS
    counts = [min(width, size - first) for first in range(0, size, width)]
    return np.array([2**count - 1 if array.any() else 0 for count in counts], array.dtype)


def engine_costs(comm: StandIn, hosts: list[str], folder: Path, is_summarized: bool) -> dict[str, Any]:
    """Of a step, a save and a stop: seconds on a processor and bytes that this rank receives."""
    stand_in = StandIn(comm.topology, comm.others, summed)
    run = partial(_fastest, partial(_run, stand_in, hosts, folder, is_summarized))
    with _votes_at_each_step():
        half, whole, saved = run(STEPS // 2), run(STEPS), run(STEPS, saves=_SAVES)
        stopped = run(STEPS, stop_after=STEPS // 2)
    return {
        "step": _shares(whole, half, STEPS // 2),
        "checkpoint": _shares(saved, whole, _SAVES),
        "stop": {
            "received": _shares(stopped, half, 1)["received"]
        },  # the times of two runs differ by more than it takes
    }


def _fastest(run: Callable[..., tuple[float, int]], steps: int, **options: int) -> tuple[float, int]:
    return min(run(steps, **options) for _ in range(_REPEATS))


@contextmanager
def _votes_at_each_step() -> Iterator[None]:
    """As where a step takes 0.4 s or more."""
    longest = stop_vote.LONGEST_INTERVAL
    stop_vote.LONGEST_INTERVAL = 1  # type: ignore[misc]
    try:
        yield
    finally:
        stop_vote.LONGEST_INTERVAL = longest  # type: ignore[misc]


def failure_costs(comm: StandIn, hosts: list[str]) -> dict[str, Any]:
    """Of an error that all ranks have, in this rank; and of the launcher's report where one of them was killed."""
    comm = StandIn(comm.topology, comm.others, summed)

    def refuse() -> None:
        raise UsageError(_REFUSAL, "Training needs it.", "check --data.dir.")

    try:
        agree(comm, refuse, _REFUSED)
    except HvdtrainError:
        received = comm.take_received()
    ended = [WorkerState(rank, host, end=WorkerExit(1), order=1 + rank) for rank, host in enumerate(hosts)]
    ended[-1].end, ended[-1].order = WorkerExit(-9), 0
    begin = time.process_time()
    diagnose(ended, None)
    return {"failure": {"received": received, "seconds": time.process_time() - begin}}


def _shares(more: tuple[float, int], less: tuple[float, int], count: int) -> dict[str, float]:
    """What each of the `count` things costs that one run has more than the other."""
    return {"seconds": max(1e-7, (more[0] - less[0]) / count), "received": max(1.0, (more[1] - less[1]) / count)}


def _run(
    comm: StandIn, hosts: list[str], folder: Path, is_summarized: bool, steps: int, saves: int = 0, stop_after: int = 0
) -> tuple[float, int]:
    """One training: seconds on a processor, bytes received."""
    done = [0]

    def count(_event: object) -> None:
        done[0] += type(_event).__name__ == "StepEnded"

    options = {"summarizes_ranks": is_summarized} if "summarizes_ranks" in Engine.__dataclass_fields__ else {}
    asked: Callable[[], str | None] = lambda: "SIGTERM" if stop_after and done[0] >= stop_after else None  # noqa: E731
    adapter, data, store = TinyAdapter(), MadeUpData(comm.topology.size), CheckpointStore(folder / "tiny", 1)
    engine = Engine(
        adapter=adapter,  # type: ignore[arg-type]
        comm=comm,
        train=data,  # type: ignore[arg-type]
        validation={},
        schedule=Schedule(peak=0.1, total_steps=STEPS, warmup_steps=0, shape="constant"),
        limits=RunLimits(1, steps, log_interval=10**6, checkpoint_interval=steps // (saves + 1) if saves else 0),
        checkpoints=CheckpointWriter(comm, store, {}),
        ledger=NoLedger(comm, folder / "no-audit"),
        callbacks=[count],
        asked=asked,
        hosts=hosts,
        **options,
    )
    comm.take_received()
    begin = time.process_time()
    engine.run(Position())
    return time.process_time() - begin, comm.take_received()
