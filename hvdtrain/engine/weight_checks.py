"""Weights of ranks are compared while training goes on: at each checkpoint, and every so many updates."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Never

import numpy as np

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.state_sync import average_rank_local_state
from hvdtrain.engine.weight_differences import divergence, ranks_unlike_first
from hvdtrain.named_arrays import State, array_checksum, weights_digest

_COMPARED_LATER: Final = -1  # no digest is negative


@dataclass(eq=False)
class WeightChecks:
    """Finds ranks whose weights have parted, and knows when they were equal.

    At a checkpoint, ranks that write it compare the copy in a thread, while training goes on; the others compare their
    weights among each other before, while those copy.
    """

    comm: Communicator
    adapter: Adapter
    finish_saves: Callable[[], None]  # waits for checkpoints under way, to go on from. Collective
    known_equal: int = 0  # the last step after which all ranks were found to have the same weights

    def after_update(self, step: int, limits: RunLimits) -> None:
        """Compare what no rank changes by itself, where that is due. Collective; no rank's weights are changed. Raises
        DivergenceError: on all ranks."""
        if not self.comm.topology.is_distributed or not limits.compares_after(step):
            return
        drifting = self.adapter.rank_local_state().keys()  # statistics of a rank's own samples, until the next save
        self._compare(weights_digest(self._weights(drifting)), f"After step {step}", drifting)
        self.known_equal = max(self.known_equal, step)

    def checksums(self) -> dict[str, int]:
        """Of each array that no rank changes by itself, by its name. No collective: there is no local SGD."""
        drifting = self.adapter.rank_local_state().keys()
        return {name: array_checksum(name, array) for name, array in sorted(self._weights(drifting).items())}

    def at_save(self, step: int, copies: bool) -> int | None:
        """The digest that the weights of a checkpoint must have; None where nothing is to be compared. Collective.

        `copies`: whether this rank has copied its state for it; such copies are compared later. Raises DivergenceError:
        on all ranks, where those that do not write the checkpoint have different weights.
        """
        if not self.comm.topology.is_distributed:
            return None
        # What is saved of a model in stages was gathered from the first replica, so each rank looks at its own.
        if copies and self.adapter.stage is None:
            return self._compare(_COMPARED_LATER, _at(step))
        digest = self._compare(weights_digest(self._weights()), _at(step))
        return digest if self.adapter.stage is None else None

    def refuse(self, step: int) -> Never:
        """The copies for the checkpoint of `step` were different: tell what differs now, perhaps some steps later.
        Collective. Raises DivergenceError: on all ranks."""
        average_rank_local_state(self.comm, self.adapter)
        self._refuse(_at(step))

    def _weights(self, drifting: Collection[str] = ()) -> State:
        return {name: array for name, array in self.adapter.view_weights().items() if name not in drifting}

    def _compare(self, digest: int, when: str, drifting: Collection[str] = ()) -> int | None:
        """The digest of the ranks that have this rank's stage, of those that compare it now."""
        differ, common = self._compared(digest) if self.adapter.stage is None else self._compared_by_stage(digest)
        if differ:
            self.finish_saves()
            self._refuse(when, drifting)
        return common

    def _compared(self, digest: int) -> tuple[bool, int | None]:
        """Whether digests differ, and the common one; the same work for any number of ranks: the largest and the least
        are compared."""
        later = np.iinfo(np.int64).min
        both = [later, later] if digest == _COMPARED_LATER else [digest, -digest]
        largest, minus_least = self.comm.allreduce(
            np.array(both, np.int64), "hvdtrain.weights.compared", "max"
        ).tolist()
        if largest == later:  # nobody compares now
            return False, None
        return largest != -minus_least, largest

    def _compared_by_stage(self, digest: int) -> tuple[bool, int | None]:
        """The same of the ranks that have this rank's stage; whether any differ."""
        stage = self.adapter.stage
        rows = self.comm.allgather(np.array([[stage, digest]], np.int64), "hvdtrain.weights.compared").tolist()
        compared = [(of, value) for of, value in rows if value != _COMPARED_LATER]
        return bool(ranks_unlike_first(compared)), next((value for of, value in compared if of == stage), None)

    def _refuse(self, when: str, drifting: Collection[str] = ()) -> Never:
        raise divergence(self.comm, self._weights(drifting), self.adapter.stage or 0, when, self.known_equal)


def _at(step: int) -> str:
    return f"At the checkpoint of step {step}"
