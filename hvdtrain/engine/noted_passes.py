"""In which updates the gradients of single virtual workers are noted: where other workers repeat passes of them
(`repeated_passes`), and where weights are hashed (--hash-every), so that runs can be compared worker by worker."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import PassChecks
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.repeatable_passes import (
    require_one_layout,
    require_repeatable,
    require_repeatable_evaluation,
)
from hvdtrain.engine.repeated_passes import Checksums, RepeatedPasses
from hvdtrain.engine.source import Source
from hvdtrain.named_arrays import array_checksum
from hvdtrain.topology.virtual_workers import VirtualWorkers


@dataclass(eq=False)
class NotedPasses:
    """
    Attributes:
        digests: of the last hashed update, a CRC-32 of the checksums of each virtual worker's gradients; equal on all
            ranks.
    """

    checks: PassChecks
    comm: Communicator
    workers: VirtualWorkers
    limits: RunLimits
    repeated: RepeatedPasses | None
    validation: Collection[Source] = ()
    digests: tuple[int, ...] = ()
    _has_begun: bool = False

    def begin(self, batch: LoadedBatch, epoch: int, step_of_epoch: int, step: int) -> Callable[[], None] | None:
        """Before update `step` (from 0), which trains on `batch`. What it returns is to be called after the update.
        Both are collective."""
        if not self._has_begun:
            self._has_begun = True
            require_one_layout(self.comm, batch)
            agree(self.comm, lambda: self._require_repeatable(batch, step), "hvdtrain.first_pass")
        check = None if self.repeated is None else self.repeated.begin(epoch, step_of_epoch, step)
        hashed = self.limits.hashes_after(step + 1)
        if check is None and not hashed:
            return None
        self.checks.note([*self.workers.own] if hashed or check is None else [check.worker])

        def after_update() -> None:
            notes = self.checks.noted()
            if check is not None:
                check.compare(notes[check.worker])
            if hashed:
                self.digests = self._gathered([notes[worker] for worker in self.workers.own])

        return after_update

    def _require_repeatable(self, batch: LoadedBatch, step: int) -> None:
        require_repeatable(self.checks, self.workers, batch, step)
        for source in self.validation:
            require_repeatable_evaluation(self.checks, self.workers, source)

    def _gathered(self, notes: list[Checksums]) -> tuple[int, ...]:
        own = np.array([array_checksum("", row) for row in notes], np.int64)
        digests: list[int] = self.comm.allgather(own, "hvdtrain.hashes.passes").tolist()
        return tuple(digests)
