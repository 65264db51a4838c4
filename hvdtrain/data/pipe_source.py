"""Training data that come through pipes, one per worker: what the engine trains on with `--data.mode pipe`.

Where the plan knows how many records reach each rank, the steps of an epoch follow from it, and no rank has to ask
another. Where nobody can know (`sharded-by-s3-key` on several hosts), the ranks agree on their counts in each step, and
the user says how many steps make an epoch: learning rate, checkpoints and progress need that number before the data
come.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_sharding.pipe.pipe_loader import BatchShape, PipeLoader, PipeSteps, slots
from data_sharding.pipe.pipe_plan import PipePlan
from data_sharding.pipe.pipe_plan_file import load_plan
from data_sharding.pipe.uneven_loader import UnevenPipeLoader, UnevenStream
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.first_batch import WatchedLoader
from hvdtrain.data.pipe_channels import PipeChannels, pipe_folder
from hvdtrain.data.random_draws import DrawWatch
from hvdtrain.data.tensor_decode import TensorDecode, warn_of_float64
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology

_log = logging.getLogger("hvdtrain.pipe")


@dataclass(frozen=True)
class PipeEpoch:
    """What of a plan the loop needs: steps of each epoch, records (at most) and slots of a step over all ranks."""

    steps: int
    num_records: int
    global_batch: int


@dataclass(eq=False)
class _Piped:
    """What is the same however counts are known.

    `seed` is that of the draws for augmentation, and `refuses_draws` is as for `CatalogSource`.
    """

    channel_plan: PipePlan
    task: Task
    comm: Communicator
    config: DataConfig
    global_batch: int
    seed: int
    refuses_draws: bool | None = None

    def __post_init__(self) -> None:
        self.fingerprint = self.channel_plan.fingerprint
        self._channels = PipeChannels(self.channel_plan, self.comm, self.config)

    def loader(self, epoch: int, start_step: int) -> PipeLoader | UnevenPipeLoader | WatchedLoader:
        """Every rank calls it: all open their FIFOs, or none does. The first one is watched."""
        if self.refuses_draws is None:
            return self._open(epoch, start_step)
        watch, self.refuses_draws = DrawWatch(self.task.decode, self.refuses_draws), None
        return WatchedLoader(self._open(epoch, start_step), watch.look, partial(warn_of_float64, self.task))

    def _open(self, epoch: int, start_step: int) -> PipeLoader | UnevenPipeLoader:
        raise NotImplementedError

    def begin(self, epoch: int) -> None:
        """Nothing: ranks open their pipes together, and a pipe is read once."""

    def abandon(self) -> None:
        """Nothing was begun."""

    def decoded_again(self, epoch: int, ids: NDArray[np.int64]) -> None:  # noqa: ARG002  what came through is gone
        return None

    def describe(self, record_id: int) -> str:
        return f"number {record_id} of the pipe"

    def reading(self) -> str:
        return "reading from its pipe"

    def _say_reading_again(self, epochs: int, steps: int) -> None:
        """A pipe has no random access: said, because it takes as long as reading did."""
        what = f"passing over {epochs} epochs, then reading and discarding {steps} steps"
        _log.info("pipes cannot be entered in the middle: %s", what)
        if self.comm.topology.is_root:
            print(f"hvdtrain: pipes cannot be entered in the middle: {what}", flush=True)


class PipeSource(_Piped):
    """Implements the engine's `Source` where the plan knows what reaches each rank.

    Raises PlanError (the plan has no channel for this rank, or the global batch is smaller than the number of ranks).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        records = self.channel_plan.rank_records()
        assert records is not None  # see `open_pipe_source`
        self._steps = PipeSteps(records, self.global_batch)

    def plan(self, epoch: int) -> PipeEpoch:  # noqa: ARG002  the same in all epochs
        return PipeEpoch(self._steps.steps, self._steps.num_records, self._steps.global_batch)

    def _open(self, epoch: int, start_step: int) -> PipeLoader:
        if epoch > self._channels.epoch or start_step:
            self._say_reading_again(epoch - self._channels.epoch, start_step)
        rank = self.comm.topology.rank
        while self._channels.epoch < epoch:  # closed early, which is legal, so that the next one comes
            with self._channels.open() as skipped:
                agree(self.comm, skipped.await_data, f"hvdtrain.pipe.skip.{epoch}")
        return PipeLoader(
            self._channels.open(),
            self._steps,
            TensorDecode(self.task),
            rank=rank,
            seed=self.seed,
            start_step=start_step,
            prefetch=self.config.prefetch,
            timeout_s=self.config.timeout,
        )


@dataclass(eq=False)
class AgreedPipeSource(_Piped):
    """Implements the engine's `Source` where counts are agreed step by step.

    An epoch has `steps`, whatever the pipes deliver; their passes follow each other.
    """

    steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        topology = self.comm.topology
        width = slots(topology.rank, topology.size, self.global_batch)
        self._stream = UnevenStream(
            self._channels.open,
            partial(agree_counts, self.comm),
            # Ranks' ids must differ, and nobody knows how many the others need.
            BatchShape(TensorDecode(self.task), width, self.seed, topology.rank << 40),
            prefetch=self.config.prefetch,
            timeout_s=self.config.timeout,
        )

    def plan(self, epoch: int) -> PipeEpoch:  # noqa: ARG002  the same in all epochs
        return PipeEpoch(self.steps, self.steps * self.global_batch, self.global_batch)

    def _open(self, epoch: int, start_step: int) -> UnevenPipeLoader:
        if (target := epoch * self.steps + start_step) > self._stream.steps_taken:
            self._say_reading_again(0, target - self._stream.steps_taken)
        return UnevenPipeLoader(self._stream, self.steps, epoch, start_step)


def open_pipe_source(
    config: DataConfig, task: Task, comm: Communicator, global_batch: int, seed: int, refuses_draws: bool | None = None
) -> PipeSource | AgreedPipeSource:
    """What `--data.mode pipe` trains on. Opens no pipe yet. Raises UsageError or ShardingError."""
    if config.pipe_dir is None or config.pipe_plan is None:
        raise UsageError(
            "--data.mode is pipe, without --data.pipe-dir and --data.pipe-plan.",
            "Pipe mode needs the folder of the FIFOs, and the plan that says who reads which.",
            "give both; `hvdtrain shard pipe-plan` makes the plan.",
        )
    plan = load_plan(Path(config.pipe_plan).expanduser())
    _check_options(config, plan, comm.topology)
    known, steps = plan.rank_records() is not None, config.pipe_steps
    if known and steps is None:
        return PipeSource(plan, task, comm, config, global_batch, seed, refuses_draws)
    if known:
        fact = f"--data.pipe-steps is {steps}, and the plan knows how many records reach each worker."
        raise UsageError(fact, "The steps of an epoch follow from that.", "leave out --data.pipe-steps.")
    if steps is None and plan.records is not None:
        steps = -(-plan.records // global_batch)  # about one pass; what one epoch leaves begins the next
    if steps is None:
        raise UsageError(
            "The plan does not know how many records reach each worker.",
            "The learning rate, checkpoints and progress need the number of steps of an epoch before the data come.",
            "give --data.pipe-steps STEPS, about records / global batch; what one epoch leaves begins the next.",
        )
    return AgreedPipeSource(plan, task, comm, config, global_batch, seed, refuses_draws, steps)


def agree_counts(comm: Communicator, count: int) -> Sequence[int]:
    """All ranks' numbers of records in this step, in the order of ranks; all 0 ends a pass for everyone."""
    counts: list[int] = comm.allgather(np.array([count], np.int64), "hvdtrain.pipe.counts").tolist()
    return counts


def _check_options(config: DataConfig, plan: PipePlan, topology: Topology) -> None:
    for option, value, default in (
        ("--data.on-corrupt", config.on_corrupt, "raise"),
        ("--data.processes", config.processes, 0),
        ("--data.shuffle", config.shuffle, "global"),
        ("--data.balance", config.balance, "records"),
    ):
        if value != default:
            raise UsageError(
                f"{option} is {value}, and --data.mode is pipe.",
                "A pipe is read once, front to back, by the worker itself, and damage ends what can be read of it.",
                f"leave out {option}.",
            )
    if (plan.size, plan.workers_per_host) != (topology.size, topology.local_size):
        raise UsageError(
            f"The pipe plan is for {plan.hosts} hosts of {plan.workers_per_host} workers, and this job has "
            f"{topology.size} workers, {topology.local_size} on this host.",
            "Some channel would have no reader, or some worker no channel.",
            "start the job that the plan is for, or make another plan.",
        )
    if not os.path.isdir(pipe_folder(config)):
        fact = f"There is no folder {pipe_folder(config)}."
        conflict = "It was given as --data.pipe-dir, where the FIFOs are to appear."
        raise UsageError(fact, conflict, "check the path, or start the agent first if that makes the folder.")
