"""The same state on all ranks, and the proof of it. A state is named arrays, so this serves every framework.

What each rank made from its own samples becomes one state by its type. Floating and complex numbers become their mean.
All else (integers, bools, float8, what modules keep in Python) has no mean: all ranks take those of the first rank that
has them, as PyTorch's DistributedDataParallel does.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hvdtrain.adapters.adapter_protocol import Adapter, WorkerStates
from hvdtrain.checkpoints.stored_arrays import restored, stored
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json, gather_bytes, gather_json, is_same_on_all
from hvdtrain.engine.sums_in_order import sum_in_order
from hvdtrain.engine.weight_differences import divergence, ranks_unlike_first
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import (
    State,
    as_numbers,
    bytes_of,
    dtype_of,
    dtype_text,
    like_numbers,
    name_of_bits,
    weights_of,
)

_log = logging.getLogger("hvdtrain.run")
_PIECE_BYTES = 4 * 2**20  # bounds what Horovod copies


def has_mean(array: NDArray[Any]) -> bool:
    """Whether the mean of all ranks' arrays replaces them."""
    return array.dtype.kind in "fc" or name_of_bits(array.dtype) == "bfloat16"


def without_means_in_common(comm: Communicator, stage: int, arrays: State) -> State:
    """The first rank's arrays in place of those that have no mean, where any rank's differ; else nothing. Collective.

    The first rank is the first one with the same stage. Raises DivergenceError: on every rank: their arrays are not the
    same ones, or have other shapes or types.
    """
    without_mean = {name: array for name, array in arrays.items() if not has_mean(array)}
    # What must be the same on all ranks of each array; texts may be of any length.
    layout = [f"{name}: {_described(array)}\n".encode() for name, array in arrays.items()]
    numbers = [stage, _hash(layout), _hash([array.tobytes() for array in without_mean.values()])]
    if is_same_on_all(comm, numbers, "hvdtrain.buffers"):
        return {}
    rows = comm.allgather(np.array([numbers], np.int64), "hvdtrain.buffers.hashes").tolist()
    if ranks_unlike_first([(of, layout_hash) for of, layout_hash, _ in rows]):
        raise _different_layout(comm, stage, arrays)
    if not ranks_unlike_first([(of, values) for of, _, values in rows]):
        return {}
    return _from_first(comm, stage, without_mean)


def _from_first(comm: Communicator, stage: int, arrays: State) -> State:
    # The ranks of the first replica are numbered as their stages are.
    message = save(stored(arrays)) if comm.topology.rank == stage else b""
    common = restored(load(gather_bytes(comm, message, "hvdtrain.buffers.first")[stage]))
    other = {name: array for name, array in common.items() if array.tobytes() != arrays[name].tobytes()}
    if other:
        names = ", ".join(name.partition("/")[2] for name in other)
        _log.info("the values of rank %d replace these, which differed and have no mean: %s", stage, names)
    return other


def _described(array: NDArray[Any]) -> str:
    return "values" if array.dtype.kind == "S" else f"{name_of_bits(array.dtype) or array.dtype} {list(array.shape)}"


def _hash(parts: list[bytes]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _different_layout(comm: Communicator, stage: int, arrays: State) -> DivergenceError:
    """Names the first buffer that differs. Collective."""
    described = {name: _described(array) for name, array in arrays.items()}
    first: dict[int, dict[str, str]] = {}
    for rank, (of, theirs) in enumerate(gather_json(comm, [stage, described], "hvdtrain.buffers.layouts")):
        expected = first.setdefault(of, theirs)
        differing = [name for name in {**expected, **theirs} if expected.get(name) != theirs.get(name)]
        if differing or list(expected) != list(theirs):
            name = differing[0] if differing else next(iter(theirs))
            return DivergenceError(
                f"The buffer {name.partition('/')[2]!r} is {theirs.get(name, 'missing')} on rank {rank}, "
                f"and {expected.get(name, 'missing')} on rank {of}.",
                "Buffers of different sizes cannot become one state of all ranks.",
                "let its size not depend on a rank's samples, or register it with persistent=False.",
            ).on_all_ranks()
    raise ValueError("the layouts are equal")


def broadcast_state(comm: Communicator, state: State | None) -> State:
    """Rank 0's named arrays on every rank, whatever the others hold (they may hold nothing).

    Names, dtypes and shapes go first, so ranks whose optimizer has no slots yet need not invent them. The values go as
    bytes: Horovod has no collective for some dtypes (bool, uint32), and a copy needs no arithmetic. A start must
    not need more memory than training does, so nothing is copied as a whole, and rank 0 gets its own arrays back.
    """
    if comm.topology.is_root and state is None:
        raise ValueError("rank 0 must give the state to broadcast")
    source = state if comm.topology.is_root and state is not None else {}
    described = [[name, dtype_text(array.dtype), list(array.shape)] for name, array in source.items()]
    layout = broadcast_json(comm, described, "hvdtrain.named_arrays.names")
    common = (
        source if comm.topology.is_root else {name: np.empty(shape, dtype_of(dtype)) for name, dtype, shape in layout}
    )
    for group in _small_ones_together([bytes_of(array) for array in common.values()]):
        _broadcast_bytes(comm, group)
    return common


def _broadcast_bytes(comm: Communicator, parts: list[NDArray[np.uint8]]) -> None:
    """Rank 0's bytes into the parts of all other ranks; rank 0's may be read-only."""
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    for start in range(0, values.size, _PIECE_BYTES):
        received = comm.broadcast(values[start : start + _PIECE_BYTES], "hvdtrain.named_arrays.values")
        if not comm.topology.is_root:
            values[start : start + _PIECE_BYTES] = received
    if len(parts) > 1 and not comm.topology.is_root:
        for part, its_values in zip(parts, np.split(values, np.cumsum([part.size for part in parts])), strict=False):
            part[:] = its_values


def _small_ones_together(parts: list[NDArray[np.uint8]]) -> Iterator[list[NDArray[np.uint8]]]:
    """The parts in their order, so many in one message as a piece holds; a larger one is alone."""
    group: list[NDArray[np.uint8]] = []
    size = 0
    for part in parts:
        if group and size + part.size > _PIECE_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        yield group


def average_rank_local_state(comm: Communicator, adapter: Adapter) -> None:
    """Replace what each rank made from its own samples by the mean over ranks, in float64, or by the first rank's where
    there is no mean; with virtual workers, what the model has by the mean over these. Collective. Raises
    DivergenceError: see `without_means_in_common`."""
    if adapter.worker_states is not None:
        _average_virtual_workers(comm, adapter.worker_states)
        return
    if comm.topology.is_distributed:
        _average(comm, adapter, adapter.rank_local_state())


def _average(comm: Communicator, adapter: Adapter, arrays: State) -> None:
    common = without_means_in_common(comm, adapter.stage or 0, arrays)
    buffers = {name: array for name, array in arrays.items() if has_mean(array)}
    common |= _means([buffers], lambda rows: comm.allreduce(rows[0], "hvdtrain.buffers"), comm.topology.size)
    if common:
        adapter.load_rank_local_state(common)


def model_buffers(adapter: Adapter) -> State:
    """Copies of what `Adapter.rank_local_state` has of the model, all that a validation can change. Collective."""
    if adapter.worker_states is not None:
        return {}  # a validation may not change them: each virtual worker has its own
    return {name: np.array(array) for name, array in weights_of(adapter.rank_local_state()).items()}


def average_changed_buffers(comm: Communicator, adapter: Adapter, before: State) -> bool:
    """As `average_rank_local_state`, after which only buffers of the model may have changed: where these are no longer
    as `before` on any rank, which is returned, and without anything else. Collective."""
    if adapter.worker_states is not None:
        _average_virtual_workers(comm, adapter.worker_states)
        return False
    after = model_buffers(adapter)
    own = _hash([array.tobytes() for array in before.values()]) != _hash([array.tobytes() for array in after.values()])
    have_changed = bool(comm.allreduce(np.array([own], np.int64), "hvdtrain.buffers.changed", "max")[0])
    if have_changed and comm.topology.is_distributed:
        _average(comm, adapter, after)
    return have_changed


def _average_virtual_workers(comm: Communicator, workers: WorkerStates) -> None:
    if not workers.differ:
        return
    states = workers.states(comm)
    without_mean = {name: array for name, array in states[0].items() if not has_mean(array)}
    common = broadcast_state(comm, without_mean if comm.topology.is_root else None) if without_mean else {}
    floats = [{name: array for name, array in state.items() if has_mean(array)} for state in states]
    name = "hvdtrain.virtual_workers.buffers"
    workers.set_common(common | _means(floats, lambda rows: sum_in_order(comm, rows, name), workers.count))


def _means(states: Sequence[State], summed: Callable[[NDArray[Any]], NDArray[Any]], count: int) -> State:
    """Means over `count` of which `states` are this rank's. `summed`: float64[k, n] of these → float64[n] of all."""
    buffers = states[0]
    if not buffers:
        return {}
    parts = [_as_floats(array) for array in buffers.values()]
    mean = summed(np.stack([np.concatenate([_as_floats(array) for array in s.values()]) for s in states])) / count
    means = np.split(mean, np.cumsum([part.size for part in parts])[:-1])
    return {
        name: like_numbers(of_array.view(_wide(array)).reshape(array.shape), array.dtype)
        for (name, array), of_array in zip(buffers.items(), means, strict=True)
    }


def _wide(array: NDArray[Any]) -> type[np.inexact[Any]]:
    return np.complex128 if array.dtype.kind == "c" else np.float64


def _as_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """A flat copy; complex numbers as pairs."""
    return as_numbers(array).astype(_wide(array)).reshape(-1).view(np.float64)


def weights_hash(state: State) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all weights and buffers."""
    digest = hashlib.sha256()
    for name, array in sorted(weights_of(state).items()):
        digest.update(f"{name} {dtype_text(array.dtype)} {array.shape}\n".encode())
        digest.update(bytes_of(array).data)
    return digest.hexdigest()


def whole_state(comm: Communicator, adapter: Adapter, keeps: bool) -> State:
    """The state of the whole model, to be read at once, on ranks that keep it; empty on others. Collective."""
    if adapter.stage is None:
        return adapter.view_state() if keeps else {}
    adapter.gather_state(comm, keeps)
    return adapter.state() if keeps else {}


def weights_in_common(comm: Communicator, adapter: Adapter, when: str, known: int | None = None) -> str:
    """The hash of the whole model's weights, which are the same on all ranks that have them. Collective.

    `known`: the last step after which they were known to be equal, if there was one. Raises DivergenceError: see
    `assert_equal_weights`.
    """
    local_hash = assert_equal_weights(comm, adapter.view_weights(), when, adapter.stage or 0, known)
    if adapter.stage is None:
        return local_hash
    is_root = comm.topology.is_root
    whole = whole_state(comm, adapter, is_root)
    return str(broadcast_json(comm, weights_hash(whole) if is_root else "", "hvdtrain.weights.whole"))


def assert_equal_weights(comm: Communicator, state: State, when: str, stage: int = 0, known: int | None = None) -> str:
    """The hash that the weights of all ranks with this stage have in common. Collective. Raises DivergenceError: on
    every rank; see `divergence`."""
    local_hash = weights_hash(state)
    if is_same_on_all(comm, local_hash, "hvdtrain.weights.hash"):
        return local_hash
    by_rank: list[list[Any]] = gather_json(comm, [stage, local_hash], "hvdtrain.weights.hash")
    if ranks_unlike_first(by_rank):
        raise divergence(comm, state, stage, when, known)
    return local_hash
