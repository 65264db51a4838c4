"""The training config: typed, frozen, checked. `config.parser` reads it from YAML and options."""

# Without `from __future__ import annotations`, here and in the modules of the classes that TrainConfig inherits: the
# command line reads the fields' types, and would look for their names in this module only.
from dataclasses import dataclass, field
from typing import Any, Literal

from hvdtrain.config.checkpoint_options import CheckpointOptions
from hvdtrain.config.logger_options import LoggerOptions
from hvdtrain.config.option_checks import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, refuse_first, require_range, seconds_of
from hvdtrain.config.schedule_options import ScheduleOptions
from hvdtrain.config.trace_option import trace_steps
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.config.validation_options import ValidationOptions
from hvdtrain.errors import UsageError


@dataclass(frozen=True)
class DataConfig:
    """Where the records are and how they are read.

    Args:
        dir: folder or URL with the task's data (default: none; the default task makes its data itself).
        download: download the data set into data.dir if it is not there, for tasks that know a source (cifar10, mnist).
        check_crc: verify each record's checksum if the format has one.
        on_corrupt: what to do with a damaged record: raise (the run fails), mask (skip it, count it and name it), or
            quarantine (as mask, and keep its bytes in the run folder).
        max_corrupt: the share of an epoch's records that may be skipped as damaged; above it the run fails in any case.
        shuffle: global (any record may come at any step), or block (neighbouring records are read together, for remote
            data).
        balance: distribute each step's records evenly over the workers by number (records), or also by size (bytes).
        verify_bytes: verify all checksums before training if the data set has at most this many bytes; larger data sets
            are verified while they are read (default: 1 GiB).
        prefetch: number of batches to decode ahead of the training loop; of small ones, at least what a thread decodes
            in a millisecond.
        threads: number of background threads that read and decode.
        processes: number of background processes that read and decode, for decoding that holds Python's GIL; 0
            uses threads only.
        timeout: seconds that the loop waits for one batch before the run fails.
        mode: file, or pipe: training data come through FIFOs, one per worker, and data.dir contains validation data
            only.
        pipe_dir: folder in which the FIFOs appear; only pipe mode uses it.
        pipe_plan: file written by `hvdtrain shard pipe-plan`: which worker reads which channel, and how many records
            come; for pipe mode.
        pipe_steps: steps per epoch, if the plan cannot know how many records reach each worker; for pipe mode.
    """

    dir: str | None = None
    download: bool = False
    check_crc: bool = True
    on_corrupt: Literal["raise", "mask", "quarantine"] = "raise"
    max_corrupt: float = 0.01
    shuffle: Literal["global", "block"] = "global"
    balance: Literal["records", "bytes"] = "records"
    verify_bytes: int = 2**30
    prefetch: int = 4
    threads: int = 1
    processes: int = 0
    timeout: float = 300.0
    mode: Literal["file", "pipe"] = "file"
    pipe_dir: str | None = None
    pipe_plan: str | None = None
    pipe_steps: int | None = None


@dataclass(frozen=True)
class RunConfig:
    """What is trained, on what, for how long. None means: the task's default.

    Args:
        task: what to train: digits, mnist, cifar10, imagenet, synthetic, text, or your own as module:Class.
        model: one of the task's models, e.g. resnet50 (default: the task's own choice).
        task_args: arguments of the task, e.g. --task-args.width 16.
        framework: torch, tensorflow, or auto: what the task requires, otherwise what is installed.
        data: where the records are and how they are read.
        epochs: number of passes over the training data, e.g. 30 (default: the task's).
        max_steps: stop after this many updates, counted from the start of training, with a checkpoint to resume from
            (default: no limit).
        max_time: stop with a checkpoint and exit code 75 after this time: seconds, or for example 3:30:00, which needs
            quotes in YAML (default: no limit).
        batch_size: records per worker and micro batch, e.g. 32; give either this or global_batch_size (default: the
            task's global batch, divided by the workers).
        global_batch_size: records per update, over all workers and micro batches (default: the task's).
        lr: peak learning rate, e.g. 0.1 (default: the task's).
        lr_scaling: how the learning rate grows with the global batch size: none, linear (Goyal et al. 2017) or sqrt.
        reference_batch_size: the global batch size for which lr was tuned; lr_scaling needs it.
        warmup_epochs: epochs in which the learning rate rises linearly to its peak (default: the task's).
        seed: seed of the initial weights, shuffling and all other random numbers.
        output_dir: the run folder (default: a new folder under runs/). The same command started again continues the run
            in it.
        resume: auto (continue the run in output_dir), never, or the path or URL of a run folder or
            checkpoint.
        init_weights: start from the weights in a file (torch .pt, .safetensors, the index of several, Keras .weights.h5
            or .keras) or in another run's folder; a resumed run keeps its own weights (default: random weights).
        init_weights_exclude: names of weights that keep their random values, in the model or in the file, with * and
            commas: 'fc.*' for a new head (default: none).
        log_interval: updates between two lines of metrics.
        progress: auto shows a bar on a terminal, but lines under MPI and in files.
        report: write report.html into the run folder at the end: auto (of a training of 10 s or more), always or never;
            `hvdtrain report RUN` writes it at any time.
        log_level: the least important messages that each worker writes to its file under logs/ in the run folder; debug
            adds all lines of metrics and every step.
        stall_timeout: seconds after which the job ends if some workers have not joined a collective.
        watchdog: time after which a training that does not go on is explained: which worker waits for what, and the
            stacks of all; or auto: 20 times what the same has taken before, 30 s at least; or never.
        watchdog_action: what follows: explain (nothing; stall_timeout and data.timeout end the job), or end (at once,
            unless a worker is computing; a launcher with --max-restarts then starts it again).
        tune: auto: in a long run of several workers, choose bucket_cap_mb by a few seconds of measuring, once for each
            job and machine; or never.
        trace: record these updates in detail, and write what all workers did as one trace for Perfetto or Chrome: the
            first and the last one, as 100:110 (in quotes in YAML), or how many after a warm-up, as 10 (default: none).
        dry_run: check the config, the task and its data, run one batch forward and backward, and write nothing.
        debug: show tracebacks of hvdtrain's own errors.
    """

    task: str = "digits"
    model: str | None = None
    task_args: dict[str, Any] = field(default_factory=dict)
    framework: str = "auto"
    data: DataConfig = field(default_factory=DataConfig)
    epochs: int | None = None
    max_steps: int | None = None
    max_time: str | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    lr: float | None = None
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    reference_batch_size: int | None = None
    warmup_epochs: float | None = None
    seed: int = 42
    output_dir: str | None = None
    resume: str = "auto"
    init_weights: str | None = None
    init_weights_exclude: str | None = None
    log_interval: int = 10
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    report: Literal["auto", "always", "never"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    stall_timeout: float = 300.0
    watchdog: str = "auto"
    watchdog_action: Literal["explain", "end"] = "explain"
    tune: Literal["auto", "never"] = "auto"
    trace: str | None = None
    dry_run: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        require_range(self, AT_LEAST_ONE, _AT_LEAST_ONE)
        require_range(self, NOT_NEGATIVE, {"warmup_epochs": "5", "seed": "42"})
        require_range(self, POSITIVE, {"lr": "0.001"})
        require_range(
            self.data, AT_LEAST_ONE, {"prefetch": "4", "threads": "1", "pipe_steps": "100", "timeout": "300"}, "data."
        )
        require_range(self.data, NOT_NEGATIVE, {"verify_bytes": "0", "processes": "0"}, "data.")
        require_range(
            self.data, ("a share of the records", lambda share: 0 <= share <= 1), {"max_corrupt": "0.01"}, "data."
        )
        require_range(self, (f"below {_SEEDS}", lambda seed: seed < _SEEDS), {"seed": "42"})
        if self.max_time is not None:
            seconds_of(self.max_time, "--max-time")
        if self.trace is not None:
            trace_steps(self.trace)
        if self.watchdog not in ("auto", "never"):
            _require_earlier(seconds_of(self.watchdog, "--watchdog"), self)
        refuse_first(_combinations(self))


@dataclass(frozen=True)
class TrainConfig(TrainingOptions, CheckpointOptions, ValidationOptions, ScheduleOptions, LoggerOptions, RunConfig):
    """One training run: what `RunConfig` and the groups of options say."""

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        LoggerOptions.__post_init__(self)
        ScheduleOptions.__post_init__(self)
        ValidationOptions.__post_init__(self)
        CheckpointOptions.__post_init__(self)
        TrainingOptions.__post_init__(self)
        if self.logger_histograms and self.parallel.is_pipeline:
            raise UsageError(
                f"--logger-histograms is given with --parallel.stages {self.parallel.stages}.",
                "Rank 0 has the weights of the first stage only.",
                "leave it out.",
            )
        if self.check_weights_every is not None and self.check_weights_every % (self.sync_every or 1):
            raise UsageError(
                f"--check-weights-every is {self.check_weights_every}, and --sync-every {self.sync_every}.",
                "Between two averages each worker has weights of its own.",
                f"give a multiple of {self.sync_every}.",
            )
        if self.trace is not None and self.steps_per_call > 1:
            raise UsageError(
                f"--trace and --steps-per-call {self.steps_per_call} are both given.",
                "Several updates of one call are one operation, so that a trace would not show single ones.",
                "leave out --steps-per-call while you look at a trace.",
            )


def _require_earlier(watchdog: float, config: RunConfig) -> None:
    """Raise `UsageError` where Horovod would end the job before it is explained."""
    if watchdog >= config.stall_timeout:
        raise UsageError(
            f"--watchdog is {config.watchdog}, and --stall-timeout {config.stall_timeout:g} s.",
            "The job would end before anything is explained.",
            "give --watchdog a shorter time, or --stall-timeout a longer one.",
        )


_SEEDS = 2**32  # Keras and numpy take no larger ones

_AT_LEAST_ONE = {
    "epochs": "10",
    "max_steps": "1000",
    "batch_size": "32",
    "global_batch_size": "256",
    "reference_batch_size": "256",
    "log_interval": "10",
    "stall_timeout": "300",
}


def _combinations(config: RunConfig) -> list[tuple[object, str, str, str]]:
    """What cannot go together."""
    return [
        (
            config.watchdog == "never" and config.watchdog_action == "end",
            "--watchdog-action end is given with --watchdog never.",
            "Nothing would end the job.",
            "leave out --watchdog never, or give a time.",
        ),
        (
            config.init_weights == "",
            "--init-weights is empty.",
            "It names no file.",
            "give a file of weights or the folder of a run.",
        ),
        (
            config.batch_size is not None and config.global_batch_size is not None,
            f"Both --batch-size {config.batch_size} and --global-batch-size {config.global_batch_size} are given.",
            "One follows from the other and the number of workers.",
            "give --global-batch-size, which means the same training at every number of workers.",
        ),
        (
            config.init_weights is not None and config.resume not in ("auto", "never"),
            f"--init-weights {config.init_weights} and --resume {config.resume} are both given.",
            "Each says which weights to start from.",
            "give --resume to continue a training, or --init-weights to begin a new one.",
        ),
        (
            config.init_weights_exclude is not None and config.init_weights is None,
            f"--init-weights-exclude {config.init_weights_exclude} is given without --init-weights.",
            "All weights are fresh then.",
            "give the file or run to start from as --init-weights PATH.",
        ),
        (
            config.lr_scaling != "none" and config.reference_batch_size is None,
            f"--lr-scaling {config.lr_scaling} is given without --reference-batch-size.",
            "Scaling multiplies lr by (global batch / reference batch), and the second number is unknown.",
            "give the global batch size for which --lr was tuned, e.g. --reference-batch-size 256.",
        ),
    ]
