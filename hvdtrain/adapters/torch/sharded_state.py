"""The state of a sharded optimizer in torch, as the arrays that one without shards has: gathered, and divided again."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.gathered_state import ShardedState, join_slices
from hvdtrain.adapters.plain_values import is_text
from hvdtrain.adapters.torch import state as whole
from hvdtrain.adapters.torch.optimizer_state import NAME, Trained, not_trained, slots_of
from hvdtrain.adapters.torch.sharded_sync import Piece, ShardedSync, in_memory_order
from hvdtrain.adapters.torch.tensor_arrays import array_of, tensor_of, to_tensor, view_of
from hvdtrain.comm.communicator import Communicator
from hvdtrain.named_arrays import State


class ShardedArrays(ShardedState):
    _whole = whole
    _sync: ShardedSync

    def _joined(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> State:
        slots: State = {}
        for piece in self._pieces():
            slots |= slots_of(optimizer, piece.name, piece.weights, lambda _, tensor: view_of(tensor))
        joined = join_slices(comm, slots, keeps)
        parameters = dict(model.named_parameters())
        return {name: _shaped(array, parameters[_parameter_in(name)]) for name, array in joined.items()}

    def load_state(self, model: Any, optimizer: Any, state: State) -> None:
        trained: dict[str, list[Trained]] = {name: [] for shard in self._sync.shards for name, _ in shard.members}
        for name in state:
            if name.startswith("optimizer/") and name != NAME and _parameter_in(name) not in trained:
                raise not_trained(_parameter_in(name))
        for piece in self._pieces():
            trained[piece.name].append((piece.weights, lambda array, piece=piece: _part(array, piece)))  # type: ignore[misc]
        whole.load_state(model, optimizer, state, trained)

    def _pieces(self) -> list[Piece]:
        return [piece for shard in self._sync.shards for piece in shard.pieces]


def _parameter_in(name: str) -> str:
    """Return PARAMETER of "optimizer/PARAMETER/SLOT"."""
    return name.removeprefix("optimizer/").rpartition("/")[0]


def _shaped(array: NDArray[Any], parameter: torch.Tensor) -> NDArray[Any]:
    """Numbers in the order of the parameter's memory, in its shape; a number as it is."""
    if array.ndim == 0:
        return np.asarray(array)
    return array_of(tensor_of(array).as_strided(parameter.shape, parameter.stride()).contiguous())


def _part(array: NDArray[Any], piece: Piece) -> NDArray[Any]:
    """Return the piece's numbers of an array of the parameter's shape; a number as it is."""
    if is_text(array) or (array.ndim == 0 and piece.parameter.ndim > 0):
        return array
    values = to_tensor(array)
    laid_out = torch.empty_strided(piece.parameter.shape, piece.parameter.stride(), dtype=values.dtype).copy_(values)
    return array_of(in_memory_order(piece.name, laid_out)[piece.start : piece.end])
