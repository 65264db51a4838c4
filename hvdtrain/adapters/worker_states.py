"""BatchNorm's statistics, and all else that a model makes from its own samples, of each virtual worker by itself.

They take turns in the model: before the pass of a virtual worker its own are put there. A checkpoint has those of all,
beside their mean, which is the model's and is validated. A run that goes on from it, with any number of workers, so has
the same ones again, and no checkpoint changes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.gathered_state import Arrays, join_slices
from hvdtrain.comm.communicator import Communicator
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import NO_STATE, State, bytes_of
from hvdtrain.topology.virtual_workers import VirtualWorkers

R = TypeVar("R")
T = TypeVar("T")

_PREFIX: Final = "virtual_workers/"
"""Begins the names in a checkpoint, each of an array [V, ...]."""
_MEAN_PREFIX: Final = "virtual_workers_mean/"
"""Begins those of means that are not among the model's own arrays there."""


class AlternatingStates(ABC, Generic[T]):
    """Implements `WorkerStates`: those of the virtual workers that this worker computes.

    Args: `arrays`: the framework's functions.

    Raises `UsageError`: the model keeps an extra state.
    """

    def __init__(self, model: Any, arrays: Arrays, workers: VirtualWorkers) -> None:
        for name, array in arrays.drifting_buffers(model).items():
            if array.dtype.kind == "S" or name.endswith("_extra_state"):
                raise _no_values(name.partition("/")[2])
        self._model, self._arrays, self._workers = model, arrays, workers
        self._gathered: State = {}
        self._in_model: int | None = None  # whose are in the model; None: what all have in common
        self.reset()
        self._first = self._unsaved()

    @abstractmethod
    def _read(self) -> list[T]:
        """A copy of what is in the model."""

    @abstractmethod
    def _write(self, values: list[T]) -> None:
        """Put back what `_read` returned."""

    def _unsaved(self) -> State:
        """Copies of what is in the model beside what a checkpoint has of a model."""
        return {}

    @abstractmethod
    def stamp(self) -> object:
        """For `changed_since`."""

    @abstractmethod
    def changed_since(self, stamp: Any) -> list[str]:
        """Names of what in the model has been written since then."""

    def reset(self) -> None:
        """What is in the model now is what each virtual worker begins with."""
        self._kept = dict.fromkeys(self._workers.own, self._read())
        self._in_model = None

    def use(self, worker: int) -> None:
        """The pass of this virtual worker follows."""
        if self._in_model == worker or not self._kept[worker]:
            return
        self._keep()
        self._write(self._kept[worker])
        self._in_model = worker

    @property
    def count(self) -> int:
        """V, of all workers together."""
        return self._workers.count

    @property
    def differ(self) -> bool:
        """Whether they have trained since their mean was put into the model. The same on all ranks."""
        return self._in_model is not None

    def states(self, comm: Communicator) -> list[State]:
        """What is saved of each virtual worker, in order. Collective."""
        states = [self.of(worker) for worker in self._workers.own]
        constant = self._first.keys() - _differing(comm, self._first, states)
        return [{name: array for name, array in state.items() if name not in constant} for state in states]

    def of(self, worker: int) -> State:
        """What one of them has."""
        self._keep()
        before = self._read()
        self._write(self._kept[worker])
        state = self._arrays.drifting_buffers(self._model) | self._unsaved()
        self._write(before)
        return state

    def set_common(self, mean: State) -> None:
        """Put the mean of all into the model. Each virtual worker goes on with its own."""
        self._keep()
        self._arrays.load_rank_local_state(self._model, mean)
        self._in_model = None

    def replaced(self, state: Mapping[str, NDArray[Any]]) -> list[T]:
        """Put this into the model. Returns what was there, for `put_back`."""
        before = self._read()
        self._arrays.load_rank_local_state(self._model, dict(state))
        return before

    def put_back(self, values: list[T]) -> None:
        """After a pass that is to leave no trace."""
        self._write(values)

    def twice_without_trace(self, run: Callable[[], R]) -> tuple[R, R, list[str]]:
        """What `run` returns, and again from what it has left in the model; and the names of saved buffers that have
        changed. All are put back."""
        before, saved = self._read(), self._saved()
        first, again, after = run(), run(), self._saved()
        self._write(before)
        changed = [name.partition("/")[2] for name, array in saved.items() if not _same_bits(array, after[name])]
        return first, again, changed

    def _saved(self) -> State:
        return {name: np.array(array) for name, array in self._arrays.drifting_buffers(self._model).items()}

    def gather(self, comm: Communicator, keeps: bool) -> None:
        """Collect those of all virtual workers for a checkpoint, on ranks that keep it. What is the same for all and in
        the model, such as a frozen layer's weights, is restored from there. Collective."""
        states = self.states(comm)
        restored = self._arrays.drifting_buffers(self._model) | self._first
        names = _differing(comm, {name: restored[name] for name in states[0]}, states)
        if not names:
            return
        flat = {name: np.concatenate([np.asarray(state[name]).reshape(-1) for state in states]) for name in names}
        shapes = {name: states[0][name].shape for name in names}
        joined = join_slices(comm, flat, keeps)
        self._gathered = {
            _PREFIX + name: array.reshape(self._workers.count, *shapes[name]) for name, array in joined.items()
        }
        means = self._unsaved() if keeps else {}
        self._gathered |= {_MEAN_PREFIX + name: array for name, array in means.items() if name in names}

    def take(self) -> State:
        """What was gathered, once; nothing where nothing was."""
        gathered, self._gathered = self._gathered, {}
        return gathered

    def load(self, state: Mapping[str, NDArray[Any]] = NO_STATE) -> None:
        """The model has a checkpoint's weights and buffers; each virtual worker gets its own, if they are there."""
        self._arrays.load_rank_local_state(self._model, self._first)
        self.reset()
        saved = {name.removeprefix(_PREFIX): array for name, array in state.items() if name.startswith(_PREFIX)}
        if not saved:
            return
        common = self._read()
        for worker in self._workers.own:
            mine = {name: np.array(array[worker]) for name, array in saved.items()}
            self._arrays.load_rank_local_state(self._model, mine)
            self._kept[worker] = self._read()
        self._write(common)

    def _keep(self) -> None:
        if self._in_model is not None:
            self._kept[self._in_model] = self._read()


def _differing(comm: Communicator, common: State, states: Sequence[State]) -> list[str]:
    """Names of what one of all virtual workers has otherwise than the model. `states`: of this rank's. Collective."""
    if not common:
        return []
    differ = [any(not _same_bits(state[name], array) for state in states) for name, array in common.items()]
    of_all = comm.allreduce(np.array(differ, np.int64), "hvdtrain.virtual_workers.differ", "max")
    return [name for name, differs in zip(common, of_all.tolist(), strict=True) if differs]


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and np.array_equal(bytes_of(one), bytes_of(other))


def _no_values(name: str) -> UsageError:
    return UsageError(
        f"--virtual-workers is given, and the model keeps an extra state, {name!r}.",
        "It may change with each batch, and only buffers are exchanged before the pass of each virtual worker.",
        "keep numbers in a buffer (register_buffer), or leave --virtual-workers out.",
    )


def means_in(state: Mapping[str, NDArray[Any]]) -> State:
    """Of a checkpoint: the means of what differs between virtual workers and is not among the model's own arrays."""
    names = [name for name in state if name.startswith(_MEAN_PREFIX)]
    return {name.removeprefix(_MEAN_PREFIX): state[name] for name in names}


def weights_written() -> UsageError:
    """A pass has changed trained weights, or may do so."""
    return UsageError(
        "--virtual-workers is given, and the model changes weights in its forward pass.",
        "They would change once for each virtual worker of a worker, and so depend on the number of workers.",
        "leave out what does so (such as Embedding(max_norm=…)), or --virtual-workers.",
    ).on_all_ranks()
