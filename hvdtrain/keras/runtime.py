"""Start Horovod for a Keras script; then make the weights of all ranks equal, keep them equal, and check it."""

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import horovod.tensorflow as horovod
import numpy as np

from hvdtrain.comm.communicator import HorovodCommunicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.tensorflow_binding import TensorFlowBinding
from hvdtrain.errors import DivergenceError
from hvdtrain.models.keras_import import require_tensorflow_backend
from hvdtrain.models.keras_normalization import normalization_constants, renew_normalization
from hvdtrain.tensorflow import start
from hvdtrain.tensorflow.start import require_init
from hvdtrain.topology import Topology


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job. Call it first, before TensorFlow computes anything.

    Starts Horovod with a finite stall limit (60 s to the warning, 300 s to the end, unless the environment says
    otherwise), shares the machine's cores out among its workers unless threads are set, and pins the GPU of this
    local rank.

    Args: see `hvdtrain.tensorflow.init`.

    Raises:
        UsageError: if Keras runs on another backend than TensorFlow, if a launcher announces another world
            than Horovod finds, or if this machine has fewer GPUs than workers.
    """
    require_tensorflow_backend()
    start.init(comm, process_sets)


def communicator() -> HorovodCommunicator:
    """What callbacks agree through: all ranks of the Horovod that `init` started."""
    here = Topology(horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size())
    return HorovodCommunicator(TensorFlowBinding(), here)


def broadcast_model(model: Any, root_rank: int, of_optimizers: Sequence[Any], local: Sequence[Any] = ()) -> None:
    """Give every rank root's optimizer state and weights. Collective; model and optimizers must be built.

    The optimizers go first, so that no value derived from them can change a weight that was already sent. Random
    seeds stay each rank's own, or all ranks would drop out the same units; and so do the variables `local`.
    """
    kept = {id(variable) for variable in local}
    _broadcast(of_optimizers, root_rank)
    _broadcast([variable for variable in model.weights if id(variable) not in kept], root_rank)
    renew_normalization(model)


def average_rank_local_weights(model: Any, local: Sequence[Any] = ()) -> None:
    """Make non-trainable weights equal again that each rank updates from its own samples. Collective.

    These are BatchNormalization's moving statistics and their like. Floats become the mean over ranks, computed in
    float64; integers (counters) become rank 0's. Weights that are equal on all ranks are neither sent nor changed, and
    neither are the variables `local`.
    """
    kept = {id(variable) for variable in local}
    comm, candidates = communicator(), [v for v in model.non_trainable_weights if id(v) not in kept]
    if not comm.topology.is_distributed or not candidates:
        return
    differing = _ranks_unlike_root(candidates, "hvdtrain.keras.average.digests")
    for variable in (variable for variable, ranks in zip(candidates, differing, strict=True) if ranks):
        if "float" in variable.dtype:
            mine = np.asarray(variable.numpy())
            total = comm.allreduce(mine.astype(np.float64), "hvdtrain.keras.average")
            variable.assign((total / comm.topology.size).astype(mine.dtype))
        else:
            _broadcast([variable], 0)


def assert_in_sync(model: Any) -> None:
    """Prove that weights and optimizer state have the same bits on every rank. Collective.

    Compares SHA-256 digests of every variable, and of what `Normalization` layers compute with. The moving statistics
    of BatchNormalization are equal at the end of an epoch only, and only with `BroadcastGlobalVariablesCallback`.

    Raises:
        DivergenceError: on every rank, naming the ranks that differ from rank 0 and the first variable that does.
    """
    require_init("hvd.assert_in_sync")
    of_optimizer = model.optimizer.variables if model.optimizer is not None else []
    variables = [*model.weights, *of_optimizer, *normalization_constants(model)]
    differing = _ranks_unlike_root(variables, "hvdtrain.keras.digests")
    ranks = sorted(set().union(*differing))
    if ranks:
        first = next((v.path for v, unlike in zip(variables, differing, strict=False) if unlike), "their number")
        raise DivergenceError(
            f"Variables of rank {', '.join(map(str, ranks))} differ from rank 0's, first in {first}.",
            "The ranks no longer train one model.",
            "look for an optimizer that is not distributed, weights changed on some ranks, or a missing "
            "BroadcastGlobalVariablesCallback.",
        )


def _broadcast(variables: Sequence[Any], root_rank: int) -> None:
    """Send bytes, since Horovod has no collective for some dtypes. All ranks list the variables in the same order."""
    comm = communicator()
    for variable in variables:
        array = np.asarray(variable.numpy())
        received = comm.broadcast(np.frombuffer(array.tobytes(), np.uint8), "hvdtrain.keras.broadcast", root_rank)
        variable.assign(received.view(array.dtype).reshape(array.shape))


def _ranks_unlike_root(variables: Sequence[Any], name: str) -> list[set[int]]:
    """Find for each variable the ranks on which its bytes differ from rank 0's."""
    by_rank = gather_json(communicator(), [_digest(variable) for variable in variables], name)
    return [{rank for rank, digest in enumerate(digests) if digest != digests[0]} for digests in zip_longest(*by_rank)]


def _digest(variable: Any) -> str:
    array = np.asarray(variable.numpy())
    return hashlib.sha256(f"{array.dtype.name} {array.shape}\n".encode() + array.tobytes()).hexdigest()
