"""The training config: typed, frozen, checked. `config.parser` reads it from YAML and options."""

# Without `from __future__ import annotations`, here and in the modules of the classes that TrainConfig inherits: the
# command line reads the fields' types, and would look for their names in this module only.
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hvdtrain.config.checkpoint_options import CheckpointOptions
from hvdtrain.config.logger_options import LoggerOptions
from hvdtrain.config.option import (
    AT_LEAST_ONE,
    FLOAT32,
    NOT_NEGATIVE,
    SECONDS,
    THREADS,
    Group,
    Options,
    Range,
    option,
)
from hvdtrain.config.schedule_options import ScheduleOptions
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.config.validation_options import ValidationOptions
from hvdtrain.config.value_syntax import trace_steps
from hvdtrain.errors import UsageError
from hvdtrain.set_names import named_patterns
from hvdtrain.units import bytes_of, seconds_of

_PART: Final = Range("a share of the records", lambda share: 0 <= share <= 1)
_SHARE: Final = Range("more than 0 and at most 1", lambda share: 0 < share <= 1)
_RESERVED: Final = Range("more than 0 and less than 1", lambda share: 0 < share < 1)
_FOLDS: Final = Range("at least 2", lambda folds: folds >= 2)
_SEED: Final = Range("from 0 to 4294967295", lambda seed: 0 <= seed < 2**32)  # Keras and numpy take no larger ones


@dataclass(frozen=True)
class DataConfig(Options):
    prefix = "data."

    dir: str | None = option(None, Group.DATA, metavar="DIR").help(
        "folder or URL with the task's data (default: none; the default task makes its data itself)."
    )
    validation: list[str] | None = option(None, Group.DATA, metavar="[NAME=]PATTERN").help("""records to validate on, by
        their files in data.dir; several sets, each with a name, are given one by one: --data.validation
        old='old-*.tfrecord' --data.validation new='new-*.tfrecord' (default: the task's).""")
    subset: float | None = option(None, Group.DATA, must=_SHARE, example="0.01").help(
        "train on this share of the records only, drawn at random, of each label where records have labels."
    )
    validation_split: float | None = option(None, Group.DATA, must=_RESERVED, example="0.1").help(
        "validate on this share of the training records, and train on the others (default: the task's own)."
    )
    folds: int | None = option(None, Group.DATA, must=_FOLDS, example="5").help(
        "cross-validation: validate on one of so many parts of the training records, and train on the others."
    )
    fold: int | None = option(None, Group.DATA, must=NOT_NEGATIVE, example="0").help(
        "which of data.folds to validate on, from 0."
    )
    download: bool = option(False, Group.DATA).help(
        "download the data set into data.dir if it is not there, for tasks that know a source (cifar10, mnist)."
    )
    check_crc: bool = option(True, Group.DATA).help("verify each record's checksum if the format has one.")
    on_corrupt: Literal["raise", "mask", "quarantine"] = option("raise", Group.DATA).help("""what to do with a damaged
        record: raise (the run fails), mask (skip it, count it and name it), or quarantine (as mask, and keep its bytes
        in the run folder).""")
    max_corrupt: float = option(0.01, Group.DATA, must=_PART).help(
        "the share of an epoch's records that may be skipped as damaged; above it the run fails in any case."
    )
    shuffle: Literal["global", "block", "length"] = option("global", Group.DATA).help("""global (any record may come at
        any step), block (neighbouring records are read together, for remote data), or length (the records of a step are
        of similar length, for sequences that are padded).""")
    memory: str = option("512MiB", Group.DATA, metavar="SIZE").help("""memory of each host for data that are read in
        blocks and kept: decoded row groups of Parquet and Arrow files and, with data.shuffle block, neighbouring
        records behind a URL. The host's workers share it (default: 512MiB).""")
    balance: Literal["records", "bytes"] = option("records", Group.DATA).help(
        "distribute each step's records evenly over the workers by number (records), or also by size (bytes)."
    )
    cache_dir: str | None = option(None, Group.DATA, metavar="DIR").help("""keep copies of remote data files, and
        decoded row groups that do not fit into data.memory, in this folder on a local disk, one for all workers of the
        host and for later jobs (default: none are kept).""")
    cache_limit: str | None = option(None, Group.DATA, metavar="SIZE").help(
        "the most that data.cache_dir may take, e.g. 200G (default: what its disk has, but for a reserve)."
    )
    verify_bytes: int = option(2**30, Group.DATA, must=NOT_NEGATIVE).help("""verify all checksums before training if the
        data set has at most this many bytes; larger data sets are verified while they are read (default: 1 GiB).""")
    prefetch: int = option(4, Group.DATA, must=AT_LEAST_ONE).help("""number of batches to decode ahead of the training
        loop; of small batches, at least as many as a thread decodes in a millisecond.""")
    threads: int = option(1, Group.DATA, must=THREADS).help("number of background threads that read and decode.")
    processes: int = option(0, Group.DATA, must=NOT_NEGATIVE, example="0").help("""number of background processes that
        read and decode, for decoding that holds Python's GIL; 0 uses threads only.""")
    timeout: float = option(300.0, Group.DATA, must=SECONDS).help(
        "seconds that the loop waits for one batch before the run fails."
    )
    mode: Literal["file", "pipe"] = option("file", Group.DATA).help(
        "file, or pipe: training data come through FIFOs, one per worker, and data.dir contains validation data only."
    )
    pipe_dir: str | None = option(None, Group.DATA, metavar="DIR").help(
        "folder in which the FIFOs appear; only pipe mode uses it."
    )
    pipe_plan: str | None = option(None, Group.DATA, metavar="FILE").help("""file written by `hvdtrain shard pipe-plan`:
        which worker reads which channel, and how many records come; for pipe mode.""")
    pipe_steps: int | None = option(None, Group.DATA, must=AT_LEAST_ONE, example="100").help(
        "steps per epoch, if the plan cannot know how many records reach each worker; for pipe mode."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.validation_patterns()  # refused now, before anything is read
        bytes_of(self.memory, "--data.memory")
        self.cache_bytes()

    def cache_bytes(self) -> int | None:
        """Bytes of `cache_limit`; None where it is not given."""
        return None if self.cache_limit is None else bytes_of(self.cache_limit, "--data.cache-limit")

    def validation_patterns(self) -> dict[str, str] | None:
        """Name → pattern of `validation`; None where it is not given."""
        if self.validation is None:
            return None
        return named_patterns(self.validation, "--data.validation", may_be_unnamed=True)


@dataclass(frozen=True)
class RunConfig(Options):
    """What is trained, on what, for how long. None means: the task's default."""

    task: str = option("digits", Group.TASK, metavar="NAME|MODULE:CLASS").help(
        "what to train: digits, mnist, cifar10, imagenet, synthetic, text, or your own as module:Class."
    )
    model: str | None = option(None, Group.TASK, metavar="NAME").help(
        "one of the task's models, e.g. resnet50 (default: the task's own choice)."
    )
    task_args: dict[str, Any] = option(dict, Group.TASK).help("arguments of the task, e.g. --task-args.width 16.")
    framework: str = option("auto", Group.TASK, metavar="{auto,torch,tensorflow}").help(
        "torch, tensorflow, or auto: what the task requires, otherwise what is installed."
    )
    data: DataConfig = field(default_factory=DataConfig)
    epochs: int | None = option(None, Group.LENGTH, must=AT_LEAST_ONE, example="10").help(
        "number of passes over the training data, e.g. 30 (default: the task's)."
    )
    max_steps: int | None = option(None, Group.LENGTH, must=AT_LEAST_ONE, example="1000").help("""stop after this many
        updates, counted from the start of training, with a checkpoint to resume from (default: no limit).""")
    max_time: str | None = option(None, Group.LENGTH, metavar="TIME").help("""stop with a checkpoint and exit code 75
        after this time: seconds, or for example 3:30:00, which needs quotes in YAML (default: no limit).""")
    batch_size: int | None = option(None, Group.LENGTH, must=AT_LEAST_ONE, example="32").help("""records per worker and
        micro batch, e.g. 32; give either this or global_batch_size (default: the task's global batch, divided by the
        workers).""")
    global_batch_size: int | None = option(None, Group.LENGTH, must=AT_LEAST_ONE, example="256").help(
        "records per update, over all workers and micro batches (default: the task's)."
    )
    lr: float | None = option(None, Group.LEARNING_RATE, must=FLOAT32, example="0.001").help(
        "peak learning rate, e.g. 0.1 (default: the task's)."
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = option("none", Group.LEARNING_RATE).help(
        "how the learning rate grows with the global batch size: none, linear (Goyal et al. 2017) or sqrt."
    )
    reference_batch_size: int | None = option(None, Group.LEARNING_RATE, must=AT_LEAST_ONE, example="256").help(
        "the global batch size for which lr was tuned; lr_scaling needs it."
    )
    warmup_epochs: float | None = option(None, Group.LEARNING_RATE, must=NOT_NEGATIVE, example="5").help(
        "epochs in which the learning rate rises linearly to its peak (default: the task's)."
    )
    seed: int = option(42, Group.REPEATABILITY, must=_SEED).help(
        "seed of the initial weights, shuffling and all other random numbers."
    )
    output_dir: str | None = option(None, Group.CHECKPOINTS, metavar="DIR").help(
        "the run folder (default: a new folder under runs/). The same command started again continues the run in it."
    )
    resume: str = option("auto", Group.CHECKPOINTS, metavar="{auto,never,PATH}").help(
        "auto (continue the run in output_dir), never, or the path or URL of a run folder or checkpoint."
    )
    init_weights: str | None = option(None, Group.TASK, metavar="PATH").help("""start from the weights in a file (torch
        .pt, .safetensors, the index of several, Keras .weights.h5 or .keras) or in another run's folder; a resumed run
        keeps its own weights (default: random weights).""")
    init_weights_exclude: str | None = option(None, Group.TASK, metavar="NAMES").help("""names of weights that keep
        their random values, as in the model or in the file; * and commas are allowed: 'fc.*' for a new head (default:
        none).""")
    dry_run: bool = option(False, Group.OUTPUT).help(
        "check the config, the task and its data, run one batch forward and backward, and write nothing."
    )
    log_interval: int = option(10, Group.OUTPUT, must=AT_LEAST_ONE).help("updates between two lines of metrics.")
    metrics_detail: Literal["auto", "ranks", "summary"] = option("auto", Group.OUTPUT).help("""what lines of metrics and
        result.json say of the workers: ranks (a list of all), summary (how their times are spread, and which have the
        largest), or auto (a list below 64 workers).""")
    progress: Literal["auto", "bar", "lines", "none"] = option("auto", Group.OUTPUT).help(
        "auto shows a bar on a terminal, but lines under MPI and in files."
    )
    report: Literal["auto", "always", "never"] = option("auto", Group.OUTPUT).help("""write report.html into the run
        folder at the end: auto (if the run took 10 s or more), always or never; `hvdtrain report RUN` writes it at
        any time.""")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", Group.OUTPUT).help(
        """the lowest level of messages that each worker writes to its file under logs/ in the run folder; debug
        adds all lines of metrics and every step."""
    )
    trace: str | None = option(None, Group.OUTPUT, metavar="{FIRST:LAST,N}").help("""record some updates in detail, and
        write what all workers did as one trace for Perfetto or Chrome: 100:110 (in quotes in YAML) for the first and
        the last of these updates, or 10 for ten updates after a warm-up (default: none).""")
    debug: bool = option(False, Group.OUTPUT).help("show tracebacks of hvdtrain's own errors.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_time is not None:
            seconds_of(self.max_time, "--max-time")
        if self.trace is not None:
            trace_steps(self.trace)
        if self.init_weights == "":
            raise UsageError(
                "--init-weights is empty.", "It does not name a file.", "give a file of weights or the folder of a run."
            )


@dataclass(frozen=True)
class StallOptions(Options):
    """What happens if some workers wait for others, or for data, too long."""

    stall_timeout: float = option(300.0, Group.GRADIENTS, must=SECONDS).help(
        "seconds after which the job ends if some workers have not joined a collective."
    )
    watchdog: str = option("auto", Group.GRADIENTS, metavar="{auto,never,TIME}").help("""time without progress after
        which the run reports which worker waits for what, with the stacks of all workers; auto: 20 times as long as the
        same work took before, but at least 30 s; or never.""")
    watchdog_action: Literal["explain", "end"] = option("explain", Group.GRADIENTS).help("""what happens then: explain
        (only the report; stall_timeout and data.timeout still end the job), or end (the job ends at once, unless a
        worker is computing; a launcher with --max-restarts starts it again).""")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watchdog not in ("auto", "never") and seconds_of(self.watchdog, "--watchdog") >= self.stall_timeout:
            raise UsageError(
                f"--watchdog is {self.watchdog}, and --stall-timeout {self.stall_timeout:g} s.",
                "The job would end before anything is explained.",
                "give --watchdog a shorter time, or --stall-timeout a longer one.",
            )


@dataclass(frozen=True)
class TrainConfig(
    StallOptions, TrainingOptions, CheckpointOptions, ValidationOptions, ScheduleOptions, LoggerOptions, RunConfig
):
    """One training run: what `RunConfig` and the groups of options say."""

    tune: Literal["auto", "never"] = option("auto", Group.GRADIENTS).help("""auto: in a long run of several workers,
        measure for a few seconds and choose bucket_cap_mb, once for each job and machine; or never.""")

    def __post_init__(self) -> None:
        super().__post_init__()
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
