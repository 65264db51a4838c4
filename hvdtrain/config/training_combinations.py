"""Options of training that cannot work together: what is given, why that cannot be, and what to do."""

from collections.abc import Callable, Sequence
from typing import Any, Final

Options = Any
"""`TrainingOptions`, which imports this module."""

Combination = tuple[object, str, str, str]
"""Whether it is given; then fact, conflict and hint."""


def _combinations_of_gradients(options: Options) -> list[Combination]:
    local, packed = options.sync_every is not None, options.compression != "none"
    return [
        (
            options.nesterov and options.momentum == 0,
            "--nesterov is given with --momentum 0.",
            "There is no momentum to look ahead by.",
            "drop one.",
        ),
        (
            packed and options.reduce_op == "adasum",
            f"--compression {options.compression} is given with --reduce-op adasum.",
            "Adasum weighs gradients by their scalar products, which are not those of the compressed ones.",
            "leave one of them out.",
        ),
        (
            options.powersgd_rank is not None and options.compression != "powersgd",
            f"--powersgd-rank {options.powersgd_rank} is given with --compression {options.compression}.",
            "It would change nothing.",
            "give --compression powersgd, or leave it out.",
        ),
        (
            options.precision == "fp16" and options.compression == "powersgd",
            "--compression powersgd is given with --precision fp16.",
            "A step whose scaled gradients overflow would spoil the error that powersgd carries on.",
            "use --precision bf16, which needs no scaling.",
        ),
        (
            options.sparse_gradients == "allgather" and (packed or local or options.reduce_op != "average"),
            "--sparse-gradients allgather is given with --compression, --reduce-op or --sync-every.",
            "Rows are gathered as they are, and added up.",
            "leave --sparse-gradients out, which makes them dense.",
        ),
        (
            options.steps_per_call > 1 and (options.accumulate_steps > 1 or local or options.precision == "fp16"),
            f"--steps-per-call {options.steps_per_call} is given with --accumulate-steps, --sync-every or --precision "
            "fp16.",
            "These have something to do in Python between two steps.",
            "leave --steps-per-call out.",
        ),
        (
            options.data_parallel and (local or packed or options.sync_batch_norm),
            "--data-parallel is given with --sync-every, --compression or --sync-batch-norm.",
            "These are for several workers, and DataParallel is one process on several GPUs.",
            "leave --data-parallel out, and start one worker per GPU.",
        ),
    ]


def _combinations_of_buckets(options: Options) -> list[Combination]:
    local, packed = options.sync_every is not None, options.compression != "none"
    return [
        (
            options.gradient_sync == "horovod"
            and (packed or local or options.sparse_gradients == "allgather" or options.reduce_op == "adasum"),
            "--gradient-sync horovod is given with --compression, --sync-every, --sparse-gradients allgather or "
            "--reduce-op adasum.",
            "It sums gradients as they are, for comparison.",
            "leave --gradient-sync out.",
        ),
        (
            options.gradient_sync == "horovod" and options.bucket_cap_mb is not None,
            f"--bucket-cap-mb {options.bucket_cap_mb} is given with --gradient-sync horovod.",
            "There are no buckets.",
            "leave one of them out.",
        ),
        (
            options.bucket_cap_mb is not None and (local or options.sparse_gradients == "allgather"),
            f"--bucket-cap-mb {options.bucket_cap_mb} is given with --sync-every or --sparse-gradients allgather.",
            "These do not sum all gradients in buckets at each update.",
            "leave one of them out.",
        ),
    ]


def _combinations_of_local_sgd(options: Options) -> list[Combination]:
    local = options.sync_every is not None
    return [
        (
            local and options.compression != "none",
            f"--compression {options.compression} is given with --sync-every {options.sync_every}.",
            "Local SGD sends weights, which are not to be rounded.",
            "leave one of them out.",
        ),
        (
            local and options.reduce_op != "average",
            f"--reduce-op {options.reduce_op} is given with --sync-every {options.sync_every}.",
            "Local SGD averages weights, and no gradients.",
            "leave one of them out.",
        ),
        (
            local and options.precision == "fp16",
            f"--precision fp16 is given with --sync-every {options.sync_every}.",
            "Each worker would decide by its own gradients whether an update is skipped, and scale them differently.",
            "use --precision bf16, which needs no scaling.",
        ),
        (
            local and options.sync_batch_norm,
            f"--sync-batch-norm is given with --sync-every {options.sync_every}.",
            "Workers would wait for each other in every layer, which local SGD is to avoid.",
            "leave one of them out.",
        ),
        (
            options.process_sets is not None and not local,
            "--process-sets is given without --sync-every.",
            "The sets would train different models for ever.",
            "say after how many updates the weights of all are averaged, e.g. --sync-every 8.",
        ),
    ]


def _combinations_of_shards(options: Options) -> list[Combination]:
    sharded = options.shard != "none"
    others = {
        f"--compression {options.compression}": options.compression != "none",
        f"--reduce-op {options.reduce_op}": options.reduce_op == "adasum",
        f"--sync-every {options.sync_every}": options.sync_every is not None,
        f"--gradient-sync {options.gradient_sync}": options.gradient_sync != "buckets",
        f"--sparse-gradients {options.sparse_gradients}": options.sparse_gradients != "dense",
    }
    other = next((name for name, given in others.items() if given), "")
    return [
        (
            sharded and other,
            f"--shard {options.shard} is given with {other}.",
            "Each worker gets its part of the summed gradients by a reducescatter, which the other option replaces.",
            "leave one of them out.",
        ),
        (
            sharded and options.optimizer in ("lars", "lamb"),
            f"--shard {options.shard} is given with --optimizer {options.optimizer}.",
            "Each worker updates parts of weights, and this optimizer needs the norm of a whole one.",
            "use adamw or sgd, or leave --shard out.",
        ),
    ]


COMBINATIONS: Final[Sequence[Callable[[Options], list[Combination]]]] = (
    _combinations_of_gradients,
    _combinations_of_buckets,
    _combinations_of_local_sgd,
    _combinations_of_shards,
)
