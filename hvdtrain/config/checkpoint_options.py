"""The options of checkpoints, checked, and the policy that they ask for."""

from dataclasses import dataclass
from typing import Final, Literal

from hvdtrain.config.option import AT_LEAST_ONE, NOT_NEGATIVE, Group, Options, option
from hvdtrain.errors import UsageError
from hvdtrain.units import seconds_of

_MTBF: Final = "24h"


@dataclass(frozen=True)
class CheckpointOptions(Options):
    keep_checkpoints: int = option(3, Group.CHECKPOINTS, must=AT_LEAST_ONE).help(
        "number of newest checkpoints to keep; the best one is kept too."
    )
    checkpoint_interval: int = option(0, Group.CHECKPOINTS, must=NOT_NEGATIVE, example="1000").help(
        "updates between checkpoints inside an epoch; 0 saves only at the end of each epoch."
    )
    checkpoint_every: str | None = option(None, Group.CHECKPOINTS, metavar="{TIME,auto}").help("""time between
        checkpoints inside an epoch, e.g. 10min, 600 or 0:10:00; auto chooses it from the time that a checkpoint costs
        and from --mtbf (default: no limit).""")
    mtbf: str | None = option(None, Group.CHECKPOINTS, metavar="TIME").help(
        "mean time between two failures of the job, e.g. 12h; for --checkpoint-every auto (default: 24h)."
    )
    checkpoint_mode: Literal["async", "sync"] = option("async", Group.CHECKPOINTS).help(
        "async: training goes on while a checkpoint is written; sync: it waits."
    )
    checkpoint_overlap: Literal["wait", "skip"] = option("wait", Group.CHECKPOINTS).help("""what to do if a checkpoint
        of --checkpoint-interval is due while an earlier one is being written: wait, or skip it. At most two copies of
        the state are in memory.""")
    checkpoint_url: str | None = option(None, Group.CHECKPOINTS, metavar="URL").help("""also copy each checkpoint, with
        metrics and the ledger of used records, to this URL, e.g. s3://bucket/run; a run that starts with an empty
        output_dir continues from there.""")
    checkpoint_writers: int = option(1, Group.CHECKPOINTS, must=AT_LEAST_ONE).help("""number of workers that write a
        checkpoint, each a part of it; they are spread over the hosts, which must share the run folder.""")
    checkpoint_failure: Literal["fail", "warn"] = option("fail", Group.CHECKPOINTS).help(
        "what to do if a checkpoint cannot be written: fail, or warn and go on without it."
    )
    check_weights_every: int | None = option(None, Group.CHECKPOINTS, must=AT_LEAST_ONE, example="100").help(
        """updates between two comparisons of all workers' weights, which are compared at each checkpoint and at
        the end in any case (default: no others)."""
    )
    hash_every: int | None = option(None, Group.REPEATABILITY, must=AT_LEAST_ONE, metavar="K", example="100").help(
        """updates between two checksums of all weights, which are kept in hashes.jsonl, so that `hvdtrain compare` can
        tell until which step two runs have the same bits (default: none are kept)."""
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint_every not in (None, "auto"):
            seconds_of(str(self.checkpoint_every), "--checkpoint-every")
        if self.mtbf is not None:
            seconds_of(self.mtbf, "--mtbf")
        if self.checkpoint_url is not None and "://" not in self.checkpoint_url:
            raise UsageError(
                f"--checkpoint-url is {self.checkpoint_url}.",
                "It is not a URL.",
                "give one that fsspec can write, such as s3://bucket/run; for a folder use --output-dir.",
            )


def seconds_between(options: CheckpointOptions) -> tuple[float | None, float] | None:
    """Seconds between two checkpoints (None: to be chosen) and between two failures; None: no checkpoints by time."""
    if options.checkpoint_every is None:
        return None
    mtbf = seconds_of(options.mtbf or _MTBF, "--mtbf")
    every = options.checkpoint_every
    return None if every == "auto" else seconds_of(every, "--checkpoint-every"), mtbf
