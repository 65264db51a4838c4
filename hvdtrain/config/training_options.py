"""How weights are updated: optimizer, precision, and how workers exchange gradients.

`TrainConfig` inherits them, so that each is an option.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hvdtrain.algorithms.update_rules import OPTIMIZERS, Settings, optimizer_named
from hvdtrain.config.conflicts import SETTINGS_OF_OPTIMIZERS, flag_of
from hvdtrain.config.option import (
    AT_LEAST_ONE,
    FLOAT32,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    THREADS,
    Group,
    Options,
    changed_options,
    default_values,
    option,
)
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.value_syntax import require_readable, updates_between_checks

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Compression = Literal["none", "fp16", "bf16", "powersgd"]
ReduceOp = Literal["average", "sum", "adasum"]
Shard = Literal["none", "optimizer", "gradients"]


@dataclass(frozen=True)
class TrainingOptions(Options):
    optimizer: str | None = option(None, Group.OPTIMIZER, metavar=f"{{{','.join(OPTIMIZERS)},NAME}}").help(
        "which optimizer, or the name of one that an installed package adds (default: the task's own, with its own "
        "settings)."
    )
    momentum: float | None = option(None, Group.OPTIMIZER, must=SHARE, example="0.9").help(
        "momentum of sgd and lars (default: 0.9)."
    )
    nesterov: bool = option(False, Group.OPTIMIZER).help("use Nesterov momentum in sgd.")
    beta1: float | None = option(None, Group.OPTIMIZER, must=SHARE, example="0.9").help(
        "decay of the first moment in adam, adamw and lamb (default: 0.9)."
    )
    beta2: float | None = option(None, Group.OPTIMIZER, must=SHARE, example="0.9").help(
        "decay of the second moment in adam, adamw and lamb (default: 0.999)."
    )
    eps: float | None = option(None, Group.OPTIMIZER, must=POSITIVE, example="1e-8").help(
        "is added to the square root of the second moment (default: 1e-8; for lamb 1e-6)."
    )
    weight_decay: float | None = option(None, Group.OPTIMIZER, must=NOT_NEGATIVE, example="0").help(
        """added to the gradient (sgd, adam, lars) or decoupled from it (adamw, lamb) (default: 0; for adamw and
        lamb 0.01)."""
    )
    decay_norm_and_bias: bool = option(False, Group.OPTIMIZER).help("decay normalization layers and biases too.")
    trust_coefficient: float | None = option(None, Group.OPTIMIZER, must=POSITIVE, example="0.001").help(
        "trust coefficient of lars (default: 0.001)."
    )
    max_grad_norm: float | None = option(None, Group.GRADIENTS, must=FLOAT32, example="1.0").help(
        "clip gradients to this norm over all weights, e.g. 1.0 (default: no clipping)."
    )
    log_grad_norm: bool = option(False, Group.METRICS).help("""compute the norm of the gradients at each update, for
        metrics and loggers; with max_grad_norm or fp16 it is known anyway.""")
    ema_decay: float | None = option(None, Group.OPTIMIZER, must=SHARE, example="0.9").help(
        "keep an exponential moving average of the weights, e.g. 0.999, and validate with it (default: none)."
    )
    precision: Precision = option("fp32", Group.PRECISION).help(
        "fp32, tf32 (GPUs since Ampere), bf16, or fp16 with loss scaling; weights stay float32."
    )
    accumulate_steps: int = option(1, Group.LENGTH, must=AT_LEAST_ONE).help(
        "number of micro batches into which each worker's part of a global batch is split, to save memory."
    )
    steps_per_call: int = option(1, Group.LENGTH, must=AT_LEAST_ONE).help("""number of training steps that TensorFlow
        makes in one call of its graph; small models then do not wait for Python at each step. torch always makes one
        step per call.""")
    activation_checkpointing: bool = option(False, Group.PRECISION).help(
        "compute activations again in the backward pass, to save memory."
    )
    sync_batch_norm: bool = option(False, Group.GRADIENTS).help(
        "BatchNorm computes its statistics over the micro batches of all workers."
    )
    compile: bool = option(False, Group.PRECISION).help(
        "use torch.compile, or XLA (jit_compile) for everything except the gradient exchange."
    )
    channels_last: bool = option(False, Group.PRECISION).help(
        "store pictures and filters as NHWC in torch, which tensor cores prefer; TensorFlow always uses NHWC."
    )
    deterministic: bool = option(False, Group.REPEATABILITY).help(
        "use only kernels that give the same bits in every run; slower, and an error if there is none."
    )
    virtual_workers: int | None = option(None, Group.REPEATABILITY, must=AT_LEAST_ONE, metavar="V", example="8").help(
        """train as V workers would, to the last bit, whatever number of workers from 1 to V there is; implies
        deterministic (default: numbers round differently for each number of workers)."""
    )
    check_workers: str | None = option(None, Group.REPEATABILITY, metavar="every=M").help(
        """with virtual_workers, let two workers repeat a part of what each worker computes at every M-th update, and
        compare the bits, e.g. every=1000: finds a processor that computes wrongly (default: nothing is repeated)."""
    )
    compute_threads: int | None = option(None, Group.PRECISION, must=THREADS, metavar="N", example="1").help(
        """threads that compute for each worker (default: OMP_NUM_THREADS, or its share of the host's cores; with
        virtual_workers always the host's cores divided by V, as their number changes the last bits)."""
    )
    compression: Compression = option("none", Group.GRADIENTS).help(
        "send gradients as fp16, as bf16 (with the range of fp32), or as powersgd with error feedback."
    )
    powersgd_rank: int | None = option(None, Group.GRADIENTS, must=AT_LEAST_ONE, example="1").help(
        "rank of the two factors that replace each matrix (default: 4)."
    )
    reduce_op: ReduceOp = option("average", Group.GRADIENTS).help(
        "average over the global batch; sum of the workers' means, as Horovod's op=Sum; or adasum."
    )
    sync_every: int | None = option(None, Group.GRADIENTS, must=AT_LEAST_ONE, example="1").help(
        """local SGD: each worker updates with its own gradients, and weights are averaged every this many updates
        (default: gradients are reduced at each update)."""
    )
    process_sets: str | None = option(None, Group.GRADIENTS, metavar="{node,RANKS}").help("""with sync_every, sets of
        workers that exchange gradients at each update: node, or for example 0-3,4-7 or 0+2,1+3 (default: none).""")
    sparse_gradients: Literal["dense", "allgather"] = option("dense", Group.GRADIENTS).help(
        "dense, or allgather: rows of sparse gradients (of embeddings) are gathered instead of the whole table."
    )
    gradient_sync: Literal["buckets", "horovod"] = option("buckets", Group.GRADIENTS).help("""buckets, or, for
        comparison, horovod: each gradient is a message of its own, which Horovod fuses; in torch by its
        DistributedOptimizer.""")
    shard: Shard = option("none", Group.GRADIENTS).help("""each of W workers keeps 1/W of the optimizer's state
        (optimizer: ZeRO stage 1), or of that and of the summed gradients (gradients: ZeRO stage 2); weights are whole
        on all workers.""")
    bucket_cap_mb: float | None = option(None, Group.GRADIENTS, must=POSITIVE, example="25").help(
        """gradients are exchanged in buckets of up to this many MiB, e.g. 25 (default: what a short measurement
        at the start of a long run finds fastest, otherwise 25). On CPUs, an uncompressed gradient of 1 MiB or
        more is a bucket by itself."""
    )
    data_parallel: bool = option(False, Group.GRADIENTS).help(
        "one process on all GPUs by torch.nn.DataParallel, for comparison."
    )
    parallel: ParallelOptions = field(default_factory=ParallelOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.process_sets is not None:
            require_readable(self.process_sets)
        if self.check_workers is not None:
            updates_between_checks(self.check_workers)

    @property
    def same_bits(self) -> bool:
        """Whether only kernels are used that give the same bits in every run."""
        return self.deterministic or self.virtual_workers is not None


if _without_option := sorted(SETTINGS_OF_OPTIMIZERS - default_values(TrainingOptions).keys()):
    raise TypeError(f"OPTIMIZERS has {_without_option}, which TrainingOptions does not have")


def non_default_options(options: TrainingOptions) -> list[str]:
    """What is not as usual, but for the optimizer and its settings, in the words of the options."""
    changed = changed_options(options, TrainingOptions)
    shown = {name: value for name, value in changed.items() if name not in ("optimizer", *SETTINGS_OF_OPTIMIZERS)}
    return [flag_of(name)[2:] + ("" if value is True else f" {value}") for name, value in shown.items()]


def optimizer_settings(options: TrainingOptions) -> Settings:
    """The settings of the chosen optimizer. Raises `ValueError` where `options.optimizer` is None."""
    name = options.optimizer
    if name is None:
        raise ValueError("no optimizer is chosen, so that the task builds its own")
    chosen: dict[str, Any] = dict(optimizer_named(name).usual)
    chosen |= {setting: value for setting in chosen if (value := getattr(options, setting)) is not None}
    return Settings(name, **chosen)


def describe_optimizer(options: TrainingOptions) -> str:
    """The optimizer in words: "adamw (beta1 0.9, beta2 0.999, eps 1e-08, weight decay 0.01)"."""
    settings = optimizer_settings(options)
    numbers = [setting for setting in optimizer_named(settings.name).usual if setting != "nesterov"]
    words = [f"{setting.replace('_', ' ')} {getattr(settings, setting):g}" for setting in numbers]
    words += ["Nesterov"] if settings.nesterov else []
    words += ["norm and bias too"] if options.decay_norm_and_bias else []
    return f"{settings.name} ({', '.join(words)})"
