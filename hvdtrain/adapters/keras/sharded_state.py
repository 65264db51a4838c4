"""The state of a sharded optimizer in Keras, as the arrays that one without shards has: gathered, and divided again."""

from types import SimpleNamespace
from typing import Any

from hvdtrain.adapters.gathered_state import ShardedState, join_in_shapes
from hvdtrain.adapters.keras import state as whole
from hvdtrain.adapters.keras.sharded_sync import ShardedSync
from hvdtrain.comm.communicator import Communicator
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

_NO_OPTIMIZER = SimpleNamespace(variables=(), _learning_rate=None)


class ShardedArrays(ShardedState):
    _whole = whole
    _sync: ShardedSync

    def _bare(self, optimizer: Any) -> Any:  # noqa: ARG002
        return _NO_OPTIMIZER

    def _joined(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> State:  # noqa: ARG002
        local = {f"optimizer/{variable.path}": variable for variable in _of(optimizer)}
        shapes = {
            name: list(self._sync.slots[id(v)].variable.shape) for name, v in local.items() if id(v) in self._sync.slots
        }
        slices = {name: whole.view_of(v.value) for name, v in local.items()}
        return join_in_shapes(comm, slices, shapes, keeps, "hvdtrain.slices.shapes")

    def load_state(self, model: Any, optimizer: Any, state: State) -> None:
        """See the base class; nothing where the state has none of them."""
        whole.load_state(model, _NO_OPTIMIZER, {n: a for n, a in state.items() if not n.startswith("optimizer/")})
        if any(name.startswith("optimizer/") for name in state):
            self._require_all_known(optimizer, state)
            for variable in _of(optimizer):
                self._load(variable, state)
        self._sync.refresh()

    def _require_all_known(self, optimizer: Any, state: State) -> None:
        """Raise `UsageError` for arrays that would be lost. This rank knows the kinds of all slots, if it has any."""
        kinds, local = set(), {f"optimizer/{variable.path}" for variable in _of(optimizer)}
        for variable in _of(optimizer):
            if id(variable) in self._sync.slots:
                path = self._sync.slots[id(variable)].variable.path
                kinds.add(variable.path.rpartition("/")[2].removeprefix(path.replace("/", "_")))
        saved = {name for name in state if name.startswith("optimizer/")} - local
        lost = sorted(name for name in saved if kinds and not name.endswith(tuple(kinds)))
        if lost:
            raise _no_fit(f"It has {lost[0]}, which this optimizer does not keep.")

    def _load(self, variable: Any, state: State) -> None:
        array, piece = state.get(f"optimizer/{variable.path}"), self._sync.slots.get(id(variable))
        shape = tuple(variable.shape if piece is None else piece.variable.shape)
        if array is None or tuple(array.shape) != shape:
            raise _no_fit(f"Missing or of another shape: optimizer/{variable.path}.")
        variable.assign(whole.to_tensor(array if piece is None else array.reshape(-1)[piece.start : piece.end]))


def _no_fit(conflict: str) -> UsageError:
    return UsageError(
        "The saved state does not fit the optimizer.",
        conflict,
        "train with the optimizer that it was saved with, or start in another --output-dir.",
    )


def _of(optimizer: Any) -> list[Any]:
    """Its variables that are state; the learning rate is a function of the step."""
    return [variable for variable in optimizer.variables if variable is not optimizer._learning_rate]
