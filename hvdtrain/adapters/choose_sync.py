"""Which gradient sync, comm hook and loss multiplier the options ask for: decided once, for both frameworks.

Frameworks map kinds to classes. So both choose in the same order, and refuse with the same words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from hvdtrain.algorithms.powersgd_rule import DEFAULT_RANK
from hvdtrain.comm.process_sets import own_process_set
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

Kind = Literal["none", "virtual", "sparse", "local", "sharded", "each", "buckets"]
Hook = Literal["plain", "fp16", "bf16", "powersgd", "adasum"]

BUCKET_BYTES: Final = 25 * 2**20
"""PyTorch DDP's default (Li et al. 2020, "PyTorch Distributed", section 4.2): large enough for the network, and small
enough for the first bucket's communication to start early."""


@dataclass(frozen=True)
class ChosenSync:
    """How gradients, or weights, of several ranks become one."""

    # "none" for one process; "virtual": sums over virtual workers in one order, also in one process; "sparse": rows are
    # gathered, other gradients are summed in buckets; "local" SGD; "sharded" optimizer; "each" gradient by itself, as
    # Horovod does it; "buckets"
    kind: Kind
    hook: Hook  # what is sent for a bucket
    # how many are summed over. With one, which has no Horovod, "buckets" are chosen for PowerSGD only, as it changes
    # gradients there too.
    ranks: int
    loss_multiplier: float  # the loss must be multiplied by this, so that the reduced gradients are right
    bucket_bytes: int
    powersgd_rank: int
    sums_means: bool  # the result is the sum of the ranks' mean gradients instead of their mean
    sync_every: int  # updates of local SGD from one average of the weights to the next
    process_set: Any = None  # Horovod's set of ranks that exchange gradients; None: all of them, in local SGD none


def choose_sync(options: TrainingOptions, topology: Topology, process_set: Any = None) -> ChosenSync:
    """What `options` ask for.

    Args: `process_set`: Horovod's set of the ranks that have the same stage of a model; None: each rank has all of it.
    """
    kind, hook = _kind(options, topology), _hook(options)
    ranks = topology.size if process_set is None else process_set.size()
    takes_means = hook == "powersgd" or options.reduce_op != "average"
    multiplier = float(ranks) if takes_means else 1.0
    if kind == "local":
        process_set = None if options.process_sets is None else own_process_set()
        ranks = 1 if process_set is None else process_set.size()
        multiplier = topology.size / ranks
    return ChosenSync(
        kind,
        hook,
        ranks,
        multiplier,
        bucket_bytes(options),
        powersgd_rank=options.powersgd_rank or DEFAULT_RANK,
        sums_means=options.reduce_op == "sum",
        sync_every=options.sync_every or 1,
        process_set=process_set,
    )


def _kind(options: TrainingOptions, topology: Topology) -> Kind:
    if options.virtual_workers is not None:
        return "virtual"
    if options.sparse_gradients == "allgather":
        return "sparse"
    if not topology.is_distributed:
        return "buckets" if options.compression == "powersgd" else "none"
    if options.sync_every is not None:
        return "local"
    if options.shard != "none":
        return "sharded"
    return "each" if options.gradient_sync == "horovod" else "buckets"


def _hook(options: TrainingOptions) -> Hook:
    if options.reduce_op == "adasum":
        return "adasum"
    return "plain" if options.compression == "none" else options.compression


def bucket_bytes(options: TrainingOptions) -> int:
    """The largest bucket of several gradients, in bytes: --bucket-cap-mb, which is in MiB as DDP's, or the default."""
    if options.gradient_sync == "horovod":
        return 1  # each gradient by itself
    return BUCKET_BYTES if options.bucket_cap_mb is None else max(1, int(options.bucket_cap_mb * 2**20))


def no_sparse_gradients(layers: str, also: str = "") -> UsageError:
    """The error for a model without them. Args: `layers`: that have some; `also`: begins the hint."""
    return UsageError(
        "--sparse-gradients allgather is given, and the model has no sparse gradients.",
        f"They come from layers like {layers}, whose weights no other layer shares.",
        f"{also}leave --sparse-gradients out, which makes gradients dense.",
    )


def needs_whole_weights(what: str, usable: Iterable[type], place: str) -> UsageError:
    """A part of a weight is not enough for something.

    Args:
        what: what needs more, e.g. "the optimizer Lamb".
        usable: optimizers that update each number of a weight by its own gradient and state.
        place: where these are, e.g. "torch.optim".
    """
    return UsageError(
        f"--shard is given with {what}.",
        "Each worker updates parts of weights, and this may need whole ones.",
        f"use one of {', '.join(sorted(each.__name__ for each in usable))} of {place}, with --max-grad-norm or "
        "--ema-decay where you want these, or leave --shard out.",
    )


def only_dense(kind: str) -> UsageError:
    """What ends a program that combines sparse gradients otherwise than by a sum. Args: `kind`: of the gradient."""
    return UsageError(
        f"A gradient is sparse ({kind}), and op is neither hvd.Average nor hvd.Sum.",
        "Rows that ranks touched can only be added up.",
        "pass sparse_as_dense=True.",
    )


def require_adasum(hvd: Any, on_gpu: bool, given: str = "--reduce-op adasum") -> None:
    """Raise `UsageError` where Horovod 0.28.1's Adasum would fail at the first update.

    It halves a vector between pairs of workers, so that their number must be a power of two; with NCCL, gradients are
    averaged within a node first, and the number of nodes must be one. Gloo has no Adasum.

    Args: `given`: the option or the argument that asks for it.
    """
    if hvd.size() == 1:
        return
    if not hvd.mpi_enabled():
        raise UsageError(
            f"{given} is given, and Horovod runs over Gloo.",
            "Horovod combines gradients by Adasum over MPI only.",
            "start the job with mpirun, or with horovodrun --mpi.",
        )
    by_node = on_gpu and hvd.nccl_built()
    count, what = (hvd.size() // hvd.local_size(), "nodes") if by_node else (hvd.size(), "workers")
    if count & (count - 1):
        raise UsageError(
            f"{given} is given for {count} {what}.",
            "Horovod combines gradients by Adasum in pairs, and pairs of pairs.",
            f"start 2, 4, 8 … {what}.",
        )
