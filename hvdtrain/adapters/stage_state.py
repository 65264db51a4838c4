"""The state of a model whose stages are on several ranks: gathered before it is saved, divided when it is loaded."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.slices import join_slices
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.named_arrays import State
from hvdtrain.topology.grid import Grid


class StageState:
    """What other ranks have of the model.

    Args:
        grid: this rank among the others; the first replica gives the state.
    """

    def __init__(self, names: Collection[str], own: Collection[str], grid: Grid) -> None:
        self._others = frozenset(names) - frozenset(own)
        self._grid = grid
        self._gathered: State | None = None
        self.stage, self.stages = grid.stage, grid.stages

    @property
    def counts(self) -> bool:
        """Whether this rank measures: the other stages are given the same records."""
        return self._grid.is_last

    def gather(self, comm: Communicator, own: State, keeps: bool) -> None:
        """Collect the arrays of all stages, for `take`, on ranks that keep them. Collective."""
        given = own if self._grid.topology.rank < self._grid.stages else {}
        shapes: dict[str, list[int]] = {}
        for told in gather_json(comm, {name: array.shape for name, array in given.items()}, "hvdtrain.stages.shapes"):
            shapes |= told
        flat = {name: array if array.ndim == 0 else np.asarray(array).reshape(-1) for name, array in given.items()}
        joined = join_slices(comm, flat, keeps)
        whole = {name: np.asarray(array).reshape(shapes[name]) for name, array in joined.items()}
        self._gathered = whole if keeps else None

    def take(self) -> State | None:
        """What was gathered, once; None where nothing was."""
        gathered, self._gathered = self._gathered, None
        return gathered

    def own_of(self, state: State) -> State:
        """Of the arrays of a whole state those that are this rank's."""
        return {key: array for key, array in state.items() if _weight_of(key) not in self._others}

    def spread(self, own: State, shapes: Mapping[str, NDArray[Any]]) -> State:
        """Arrays whose mean over all ranks is the mean over those that have the stage, and those without a mean.

        Args:
            shapes: zeros, float64 or complex128, in the shapes of all stages' arrays that have a mean.
        """
        spread = {
            name: zeros if name not in own else self.stages * own[name].astype(zeros.dtype)
            for name, zeros in shapes.items()
        }
        return spread | {name: array for name, array in own.items() if name not in shapes}


def _weight_of(key: str) -> str:
    """ "fc.weight" of "model/fc.weight", "ema/fc.weight" and "optimizer/fc.weight/exp_avg"."""
    kind, _, name = key.partition("/")
    if kind == "optimizer":
        return name.rpartition("/")[0]
    return name if kind in ("model", "ema") else ""
