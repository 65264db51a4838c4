"""How weights are updated: optimizer, precision, and how workers exchange gradients. Typed, frozen, cross-checked.

`TrainConfig` inherits them, so that each is an option. Combinations that cannot work are refused by name, below.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from hvdtrain.algorithms.update_rules import OPTIMIZERS, OptimizerName
from hvdtrain.config.option_checks import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    option_of,
    refuse_first,
    require_companion,
    require_range,
)
from hvdtrain.config.parallel_options import ParallelOptions, combinations_of_stages
from hvdtrain.config.process_set_syntax import require_readable
from hvdtrain.errors import UsageError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Compression = Literal["none", "fp16", "bf16", "powersgd"]
ReduceOp = Literal["average", "sum", "adasum"]
Shard = Literal["none", "optimizer", "gradients"]


@dataclass(frozen=True)
class TrainingOptions:
    """How weights are updated.

    Args:
        optimizer: which optimizer (default: the task's own, with its own settings).
        momentum: momentum of sgd and lars (default: 0.9).
        nesterov: use Nesterov momentum in sgd.
        beta1: decay of the first moment in adam, adamw and lamb (default: 0.9).
        beta2: decay of the second moment in adam, adamw and lamb (default: 0.999).
        eps: is added to the square root of the second moment (default: 1e-8; for lamb 1e-6).
        weight_decay: added to the gradient (sgd, adam, lars) or decoupled from it (adamw, lamb) (default: 0; for adamw
            and lamb 0.01).
        decay_norm_and_bias: decay normalization layers and biases too.
        trust_coefficient: trust coefficient of lars (default: 0.001).
        max_grad_norm: clip gradients to this norm over all weights, e.g. 1.0 (default: no clipping).
        log_grad_norm: compute the norm of the gradients at each update, for metrics and loggers; with max_grad_norm or
            fp16 it is known anyway.
        ema_decay: keep an exponential moving average of the weights, e.g. 0.999, and validate with it (default: none).
        precision: fp32, tf32 (GPUs since Ampere), bf16, or fp16 with loss scaling; weights stay float32.
        accumulate_steps: number of micro batches into which each worker's part of a global batch is split, to save
            memory.
        steps_per_call: number of training steps that TensorFlow makes in one call of its graph; small models then do
            not wait for Python at each step. torch is called at each step anyway.
        activation_checkpointing: compute activations again in the backward pass, to save memory.
        sync_batch_norm: BatchNorm computes its statistics over the micro batches of all workers.
        compile: use torch.compile, or XLA (jit_compile) for everything except the gradient exchange.
        channels_last: store pictures and filters as NHWC in torch, which tensor cores prefer; TensorFlow always uses
            NHWC.
        deterministic: use only kernels that give the same bits in every run; slower, and an error if there is none.
        data_parallel: one process on all GPUs by torch.nn.DataParallel, for comparison.
        compression: send gradients as fp16, as bf16 (with the range of fp32), or as powersgd with error feedback.
        powersgd_rank: rank of the two factors that replace each matrix (default: 4).
        reduce_op: average over the global batch; sum of the workers' means, as Horovod's op=Sum; or adasum.
        sync_every: local SGD: each worker updates with its own gradients, and weights are averaged every this many
            updates (default: gradients are reduced at each update).
        process_sets: with sync_every, sets of workers that exchange gradients at each update: node, or for example
            0-3,4-7 or 0+2,1+3 (default: none).
        sparse_gradients: dense, or allgather: rows of sparse gradients (of embeddings) are gathered instead of the
            whole table.
        gradient_sync: buckets, or for comparison horovod: each gradient by a message of its own, which Horovod fuses;
            in torch by its DistributedOptimizer.
        shard: each of W workers keeps 1/W of the optimizer's state (optimizer: ZeRO stage 1), or of that and of the
            summed gradients (gradients: ZeRO stage 2); weights are whole on all workers.
        bucket_cap_mb: gradients are exchanged in buckets of up to this many MiB, e.g. 25 (default: what a short
            measurement at the start of a long run finds fastest, otherwise 25). On CPUs, an uncompressed gradient of
            1 MiB or more is a bucket by itself.
        parallel: how the model is divided into stages.
    """

    optimizer: OptimizerName | None = None
    momentum: float | None = None
    nesterov: bool = False
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    decay_norm_and_bias: bool = False
    trust_coefficient: float | None = None
    max_grad_norm: float | None = None
    log_grad_norm: bool = False
    ema_decay: float | None = None
    precision: Precision = "fp32"
    accumulate_steps: int = 1
    steps_per_call: int = 1
    activation_checkpointing: bool = False
    sync_batch_norm: bool = False
    compile: bool = False
    channels_last: bool = False
    deterministic: bool = False
    data_parallel: bool = False
    compression: Compression = "none"
    powersgd_rank: int | None = None
    reduce_op: ReduceOp = "average"
    sync_every: int | None = None
    process_sets: str | None = None
    sparse_gradients: Literal["dense", "allgather"] = "dense"
    gradient_sync: Literal["buckets", "horovod"] = "buckets"
    shard: Shard = "none"
    bucket_cap_mb: float | None = None
    parallel: ParallelOptions = field(default_factory=ParallelOptions)

    def __post_init__(self) -> None:
        require_range(self, SHARE, dict.fromkeys(("momentum", "beta1", "beta2", "ema_decay"), "0.9"))
        positive = {"eps": "1e-8", "trust_coefficient": "0.001", "max_grad_norm": "1.0", "bucket_cap_mb": "25"}
        require_range(self, POSITIVE, positive)
        require_range(self, NOT_NEGATIVE, {"weight_decay": "0"})
        require_range(self, AT_LEAST_ONE, dict.fromkeys(_COUNTS, "1"))
        own = "The task builds its own optimizer, with its own settings."
        require_companion(self, "optimizer", _OPTIMIZERS_OF, own)
        refuse_first(
            [
                *(*_combinations_of_gradients(self), *_combinations_of_buckets(self)),
                *(*_combinations_of_local_sgd(self), *_combinations_of_shards(self), *combinations_of_stages(self)),
            ]
        )
        if self.parallel.choose == "auto" and self.shard != "none":
            raise UsageError(
                f"--parallel auto is given with --shard {self.shard}.", "It chooses that too.", "leave one of them out."
            )
        if self.process_sets is not None:
            require_readable(self.process_sets)

    @property
    def may_accumulate(self) -> bool:
        """Whether more micro batches would go with the other options, in both frameworks."""
        return self.steps_per_call == 1 and self.sparse_gradients != "allgather"


def non_default_options(options: TrainingOptions) -> list[str]:
    """What is not as usual, but for the optimizer and its settings, in the words of the options."""
    given = changed_options(options, TrainingOptions(), ("optimizer", *_OPTIMIZERS_OF))
    return [option_of(name)[2:] + ("" if value is True else f" {value}") for name, value in given.items()]


def changed_options(options: Any, usual: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Those that are not as in `usual`: their names, as "parallel.stages" for one in a group, and values."""
    changed: dict[str, Any] = {}
    for name in (one.name for one in fields(usual) if one.name not in without):
        value, default = getattr(options, name), getattr(usual, name)
        if is_dataclass(default):
            changed |= {f"{name}.{inner}": own for inner, own in changed_options(value, default).items()}
        elif value != default:
            changed[name] = value
    return changed


_COUNTS = ("accumulate_steps", "steps_per_call", "powersgd_rank", "sync_every")

_OPTIMIZERS_OF = {
    option: [name for name, other in OPTIMIZERS.items() if option in other.usual]
    for optimizer in OPTIMIZERS.values()
    for option in optimizer.usual
} | {"decay_norm_and_bias": list(OPTIMIZERS)}
"""Which optimizers have each option."""

if _without_option := sorted(_OPTIMIZERS_OF.keys() - {field.name for field in fields(TrainingOptions)}):
    raise TypeError(f"OPTIMIZERS has {_without_option}, which TrainingOptions does not have")


def _combinations_of_gradients(options: TrainingOptions) -> list[tuple[object, str, str, str]]:
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


def _combinations_of_buckets(options: TrainingOptions) -> list[tuple[object, str, str, str]]:
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


def _combinations_of_local_sgd(options: TrainingOptions) -> list[tuple[object, str, str, str]]:
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


def _combinations_of_shards(options: TrainingOptions) -> list[tuple[object, str, str, str]]:
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
