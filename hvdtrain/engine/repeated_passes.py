"""Finds a worker that computes wrongly (--check-workers): others repeat a pass of it now and then, and compare bits.

Virtual workers make that possible: what one of them computes in a step follows from the weights, the records, the seed
and its number, and from what it has made of earlier samples, whoever computes it. Of each worker one virtual worker is
repeated, by the next worker, or by the next two, where there are three workers or more: then the majority says who is
wrong. A repetition reads the records again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import PassChecks, WorkerStates
from hvdtrain.comm.communicator import Communicator
from hvdtrain.engine.states_of_passes import states_of
from hvdtrain.errors import DivergenceError, WrongWorkerError
from hvdtrain.named_arrays import array_checksum
from hvdtrain.topology.virtual_workers import VirtualWorkers

_NAMED: Final = 3  # weights in a message

Checksums = NDArray[np.int64]


@dataclass(frozen=True)
class Check:
    """Of one update: `worker` is this rank's virtual worker whose gradients are to be noted; `compare` takes their
    checksums after the update, int64[weights]. Collective."""

    worker: int
    compare: Callable[[Checksums], None]


@dataclass(eq=False)
class RepeatedPasses:
    checks: PassChecks
    states: WorkerStates
    comm: Communicator
    # returns what a virtual worker has in a step of an epoch, given their numbers: epoch, step, virtual worker
    read: Callable[[int, int, int], LoadedBatch]
    workers: VirtualWorkers
    every: int  # updates between two checks
    hosts: Sequence[str]  # of each rank, or ()
    leaves_out: bool = False  # a worker that is found to be wrong ends alone, as others may train on without it
    # called on all ranks before a wrong worker ends: training is to resume with so many updates at most
    go_back: Callable[[int], object] = lambda _step: None

    def begin(self, epoch: int, step_of_epoch: int, step: int) -> Check | None:
        """Before update `step` (from 0): repeat passes of other workers, if a check is due. Collective."""
        if (step + 1) % self.every:
            return None
        number = step // self.every
        worker = self._checked(self.comm.topology.rank, number)
        targets = self._targets(self.comm.topology.rank)
        states = states_of(self.comm, self.states.of(worker), targets)
        repeated = []
        for rank in targets:
            other = self._checked(rank, number)
            batch = self.read(epoch, step_of_epoch, other)
            repeated.append(self.checks.repeated(batch, other, step, states[rank]))
        return Check(worker, lambda own: self._compare(np.stack([own, *repeated]), step + 1, number))

    def _targets(self, rank: int) -> list[int]:
        """Of which ranks this one repeats a pass."""
        size = self.comm.topology.size
        return [(rank + distance) % size for distance in range(1, min(3, max(size, 2)))]

    def _checked(self, rank: int, number: int) -> int:
        """Which virtual worker of a rank a check is of: each one in turn."""
        own = self.workers.of_rank(rank)
        return own[number % len(own)]

    def _compare(self, rows: Checksums, step: int, number: int) -> None:
        """`rows`: of this rank's own pass, and of those that it has repeated, int64[1 + repeated, weights]."""
        name = "hvdtrain.check_workers"
        digests = np.array([[array_checksum("", row) for row in rows]], np.int64)
        by_rank = self.comm.allgather(digests, f"{name}.digests").tolist()
        wrong, undecided = self._judge(by_rank)
        if not wrong and not undecided:
            return
        details = self.comm.allgather(rows[None], f"{name}.checksums")
        error = self._error(details, wrong, undecided, step, number)
        self.go_back(step - self.every)
        if self.comm.topology.rank in wrong:
            error = WrongWorkerError(error.fact, error.conflict, error.hint)
        if not (self.leaves_out and wrong):
            raise error.on_all_ranks()
        if self.comm.topology.rank in wrong:
            raise error
        # The others will see that it has ended, and go on from where `go_back` has led.

    def _judge(self, by_rank: list[list[int]]) -> tuple[set[int], set[int]]:
        """Ranks that a majority shows to be wrong, and those of which it is one or another."""
        wrong: set[int] = set()
        undecided: set[int] = set()
        for rank, (own, *_) in enumerate(by_rank):
            others = [
                (by, of_other[1 + self._targets(by).index(rank)])
                for by, of_other in enumerate(by_rank)
                if rank in self._targets(by)
            ]
            differing = [by for by, value in others if value != own]
            if not differing:
                continue
            if len(differing) == len(others) > 1 and len({value for _, value in others}) == 1:
                wrong.add(rank)
            elif len(differing) < len(others):
                wrong.update(differing)
            else:
                undecided.update((rank, *differing))
        return wrong, undecided - wrong

    def _error(
        self, details: NDArray[np.int64], wrong: set[int], undecided: set[int], step: int, number: int
    ) -> DivergenceError:
        names = self.checks.names
        columns = [
            place
            for place in range(len(names))
            for rank in range(len(details))
            for target, row in zip(self._targets(rank), details[rank, 1:], strict=True)
            if row[place] != details[target, 0, place]
        ]
        differing = [names[place] for place in dict.fromkeys(columns)]
        some = ", ".join(differing[:_NAMED]) + (" …" if len(differing) > _NAMED else "")
        ranks = sorted(wrong or undecided)
        passes = ", ".join(str(self._checked(rank, number)) for rank in ranks)
        who = " and ".join(f"rank {rank}{self._host(rank)}" for rank in ranks)
        verb = "has computed other gradients" if len(ranks) == 1 else "have computed different gradients"
        known = "than two other workers" if wrong else "for the same virtual workers"
        return DivergenceError(
            f"At step {step}, {who} {verb} {known}, from the same weights and records (of {some}).",
            "A processor, its memory or the task computes something else there, so that the weights since the check "
            f"before may be wrong (checked were virtual workers {passes}).",
            "train on without that host, with --resume auto; where all hosts are sound, look for code in the task "
            "that draws random numbers of its own, depends on the rank, or keeps anything from pass to pass outside of "
            "buffers.",
        )

    def _host(self, rank: int) -> str:
        return f" on {self.hosts[rank]}" if self.hosts else ""
