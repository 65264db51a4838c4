"""Make the ranks' weights equal, keep them equal, and prove it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as horovod
import numpy as np

from hvdtrain.errors import DivergenceError
from hvdtrain.keras.collectives import allgather_bytes, allreduce_sum, broadcast_variables
from hvdtrain.keras.runtime import require_init

_DIGEST_BYTES = 32


def broadcast_model(model: Any, root_rank: int) -> None:
    """Give every rank root's optimizer state and weights. Collective; model and optimizer must be built.

    The optimizer goes first, so that no value derived from it can change a weight that was already sent. Random
    seeds stay each rank's own, or all ranks would drop out the same units.
    """
    if model.optimizer is not None:
        broadcast_variables(model.optimizer.variables, root_rank, "hvdtrain_broadcast_optimizer")
    broadcast_variables(model.weights, root_rank, "hvdtrain_broadcast_weights")


def average_drift(model: Any) -> list[str]:
    """Make non-trainable weights equal again that each rank updates from its own samples. Collective.

    These are BatchNormalization's moving statistics and their like. Floats become the mean over ranks, computed in
    float64; integers (counters) become rank 0's. Weights that are equal on all ranks are neither sent nor changed.

    Returns:
        The paths of the weights that differed.
    """
    candidates = model.non_trainable_weights
    if horovod.size() == 1 or not candidates:
        return []
    differing = _ranks_unlike_root(candidates, "hvdtrain_drift_digests")
    drifted = [variable for variable, ranks in zip(candidates, differing, strict=True) if ranks]
    floats = [variable for variable in drifted if "float" in variable.dtype]
    for place, variable in enumerate(floats):
        local = np.asarray(variable.numpy(), np.float64)
        total = allreduce_sum(local.reshape(-1), f"hvdtrain_drift_{place}")
        variable.assign((total / horovod.size()).reshape(local.shape).astype(variable.numpy().dtype))
    broadcast_variables([v for v in drifted if "float" not in v.dtype], 0, "hvdtrain_drift_counters")
    return [variable.path for variable in drifted]


def assert_in_sync(model: Any) -> None:
    """Prove that weights and optimizer state have the same bits on every rank. Collective.

    Compares SHA-256 digests of every variable. The moving statistics of BatchNormalization are equal at the end of
    an epoch only, and only with `BroadcastGlobalVariablesCallback`.

    Raises:
        DivergenceError: on every rank, naming the ranks that differ from rank 0 and the first variable that does.
    """
    require_init("hvd.assert_in_sync")
    variables = [*model.weights, *(model.optimizer.variables if model.optimizer is not None else [])]
    differing = _ranks_unlike_root(variables, "hvdtrain_sync_digests")
    ranks = sorted(set().union(*differing))
    if ranks:
        first = next((v.path for v, unlike in zip(variables, differing, strict=False) if unlike), "their number")
        raise DivergenceError(
            f"Variables of rank {', '.join(map(str, ranks))} differ from rank 0's, first in {first}.",
            "The ranks no longer train one model.",
            "look for an optimizer that is not distributed, weights changed on some ranks, or a missing "
            "BroadcastGlobalVariablesCallback.",
        )


def _ranks_unlike_root(variables: Sequence[Any], name: str) -> list[set[int]]:
    """For each variable the ranks on which its bytes differ from rank 0's."""
    digests = b"".join(_digest(variable) for variable in variables)
    by_rank = allgather_bytes(digests, name)
    differing: list[set[int]] = []
    for start in range(0, max(map(len, by_rank)), _DIGEST_BYTES):
        chunks = [digests[start : start + _DIGEST_BYTES] for digests in by_rank]
        differing.append({rank for rank, chunk in enumerate(chunks) if chunk != chunks[0]})
    return differing


def _digest(variable: Any) -> bytes:
    array = np.ascontiguousarray(variable.numpy())
    header = f"{array.dtype.name} {array.shape}\n".encode()
    return hashlib.sha256(header + array.tobytes()).digest()
