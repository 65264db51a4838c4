"""What checked virtual workers have made from their own samples, sent to the workers that repeat their passes.

A pass may read it: a queue of earlier samples, a codebook, or BatchNorm's statistics where some layers do not train.
"""

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.named_arrays import State, array_checksum, bytes_of

_NAME: Final = "hvdtrain.check_workers.states"


def states_of(comm: Communicator, own: State, ranks: Collection[int]) -> dict[int, State]:
    """The state of each of these ranks. Only arrays that are not the same on all ranks are sent. Collective.

    Args: `own`: this rank's; names, dtypes and shapes are those of all ranks.
    """
    names = _differing(comm, own)
    if not names:
        return dict.fromkeys(ranks, own)
    sent = np.concatenate([bytes_of(own[name]) for name in names])
    received: dict[int, State] = {}
    for rank in range(comm.topology.size):  # one after the other: a rank then keeps only what it needs
        flat = comm.broadcast(sent, f"{_NAME}.{rank}", root=rank)
        if rank in ranks:
            received[rank] = own | _cut(flat, {name: own[name] for name in names})
    return received


def _differing(comm: Communicator, own: State) -> list[str]:
    if not own:
        return []
    checksums = np.array([array_checksum("", array) for array in own.values()], np.int64)
    highest = comm.allreduce(np.stack([checksums, -checksums]), f"{_NAME}.checksums", "max")
    return [name for name, high, low in zip(own, *highest.tolist(), strict=True) if high != -low]


def _cut(flat: NDArray[np.uint8], like: State) -> State:
    ends = np.cumsum([array.nbytes for array in like.values()])
    parts = np.split(flat, ends[:-1])
    return {
        name: part.copy().view(array.dtype).reshape(array.shape)  # a copy begins where its type needs it
        for (name, array), part in zip(like.items(), parts, strict=True)
    }
