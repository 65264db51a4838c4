"""The state of a sharded optimizer, in both frameworks: that of one without shards, gathered before it is read."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.named_arrays import NO_STATE, State


class Arrays(Protocol):
    """A framework's functions (the module `state`) that make named arrays of a model and its optimizer, and back."""

    def read_state(self, model: Any, optimizer: Any, earlier: Mapping[str, NDArray[Any]]) -> State: ...

    def view_state(self, model: Any, optimizer: Any) -> State: ...

    def view_weights(self, model: Any, optimizer: Any) -> State: ...

    def load_state(self, model: Any, optimizer: Any, state: State) -> None: ...

    def drifting_buffers(self, model: Any) -> State: ...

    def load_rank_local_state(self, model: Any, buffers: State) -> None: ...


class ShardedState(ABC):
    """Implements `Arrays`: checkpoints are those of a run without shards, for any number of workers.

    Args:
        whole: the framework's functions, which are given an optimizer that keeps nothing of whole weights.
    """

    def __init__(self, whole: Arrays) -> None:
        self._whole = whole
        self._gathered: State = {}
        self.drifting_buffers, self.load_rank_local_state = whole.drifting_buffers, whole.load_rank_local_state

    def gather(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> None:
        """Collect what `read_state` will return; `keeps`: whether this rank will call it. Collective."""
        self._gathered = self._joined(comm, model, optimizer, keeps)

    def read_state(self, model: Any, optimizer: Any, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
        """After `gather`, whose arrays it gives away."""
        gathered, self._gathered = self._gathered, {}
        return self._whole.read_state(model, self._bare(optimizer), earlier) | gathered

    def view_state(self, model: Any, optimizer: Any) -> State:
        """Without the optimizer's."""
        return self._whole.view_state(model, self._bare(optimizer))

    def view_weights(self, model: Any, optimizer: Any) -> State:
        return self._whole.view_weights(model, self._bare(optimizer))

    @abstractmethod
    def load_state(self, model: Any, optimizer: Any, state: State) -> None:
        """Of each array of the optimizer this rank's part."""

    @abstractmethod
    def _joined(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> State:
        """The optimizer's arrays in the shapes of whole weights. Collective."""

    def _bare(self, optimizer: Any) -> Any:
        """An optimizer in which `whole` finds nothing."""
        return optimizer
