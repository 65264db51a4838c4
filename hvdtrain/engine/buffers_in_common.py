"""What each rank made from its own samples, as one state of all ranks, by a rule that the type decides.

Floating and complex numbers become their mean. All else (integers, bools, float8, what modules keep in Python) has no
mean: all ranks take those of the first rank that has them, as PyTorch's DistributedDataParallel does.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hvdtrain.checkpoints.stored_arrays import restored, stored
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_bytes, gather_json
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import State, name_of_bits

_log = logging.getLogger("hvdtrain.run")


def has_mean(array: NDArray[Any]) -> bool:
    """Whether the mean of all ranks' arrays replaces them."""
    return array.dtype.kind in "fc" or name_of_bits(array.dtype) == "bfloat16"


def without_means_in_common(comm: Communicator, stage: int, arrays: State) -> State:
    """The first rank's arrays in place of those that have no mean, where any rank's differ; else nothing. Collective.

    Args:
        stage: of this rank; the first rank is the first one with the same stage.
        arrays: this rank's, those that have a mean included.

    Raises:
        DivergenceError: on every rank: their arrays are not the same ones, or have other shapes or types.
    """
    without_mean = {name: array for name, array in arrays.items() if not has_mean(array)}
    numbers = [stage, _hash(_layout(arrays)), _hash([array.tobytes() for array in without_mean.values()])]
    all_numbers = comm.allgather(np.array([numbers], np.int64), "hvdtrain.buffers.hashes")
    first = {of: (layout, values) for of, layout, values in reversed(all_numbers.tolist())}
    if any(first[of][0] != layout for of, layout, _ in all_numbers.tolist()):
        raise _different_layout(comm, stage, arrays)
    if all(first[of][1] == values for of, _, values in all_numbers.tolist()):
        return {}
    return _from_first(comm, stage, without_mean)


def _from_first(comm: Communicator, stage: int, arrays: State) -> State:
    # The ranks of the first replica are numbered as their stages are.
    own = save(stored(arrays)) if comm.topology.rank == stage else b""
    common = restored(load(gather_bytes(comm, own, "hvdtrain.buffers.first")[stage]))
    other = {name: array for name, array in common.items() if array.tobytes() != arrays[name].tobytes()}
    if other:
        names = ", ".join(name.partition("/")[2] for name in other)
        _log.info("the values of rank %d replace these, which differed and have no mean: %s", stage, names)
    return other


def _layout(arrays: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """Of each array what must be the same on all ranks; texts may be of any length."""
    return [f"{name}: {_described(array)}\n".encode() for name, array in arrays.items()]


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
