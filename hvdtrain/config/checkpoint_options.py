"""The options of checkpoints, checked, and the policy that they ask for."""

from dataclasses import dataclass
from typing import Final, Literal

from hvdtrain.config.option_checks import AT_LEAST_ONE, NOT_NEGATIVE, refuse_first, require_range, seconds_of

_MTBF: Final = "24h"


@dataclass(frozen=True)
class CheckpointOptions:
    """When and how checkpoints are saved.

    Args:
        keep_checkpoints: number of newest checkpoints to keep; the best one is kept too.
        checkpoint_interval: updates between checkpoints inside an epoch; 0 saves only at the end of each epoch.
        checkpoint_every: time between checkpoints inside an epoch, e.g. 10min, 600 or 0:10:00; auto chooses it from
            what a checkpoint costs and mtbf (default: no limit).
        mtbf: mean time between failures of the job, e.g. 12h; for --checkpoint-every auto (default: 24h).
        checkpoint_mode: async: training goes on while a checkpoint is written; sync: it waits.
        checkpoint_overlap: what to do if a checkpoint of --checkpoint-interval is due while an earlier one is being
            written: wait, or skip it. Two copies of the state are in memory at most.
        checkpoint_url: also copy each checkpoint, with metrics and the account of used records, to this URL, e.g.
            s3://bucket/run; a run that starts with an empty output_dir continues from there.
        checkpoint_writers: how many workers write a checkpoint, each a part of it, spread over the hosts, which must
            share the run folder.
        checkpoint_failure: what to do if a checkpoint cannot be written: fail, or warn and go on without it.
        check_weights_every: updates between two comparisons of all workers' weights, which are compared at each
            checkpoint and at the end in any case (default: no others).
    """

    keep_checkpoints: int = 3
    checkpoint_interval: int = 0
    checkpoint_every: str | None = None
    mtbf: str | None = None
    checkpoint_mode: Literal["async", "sync"] = "async"
    checkpoint_overlap: Literal["wait", "skip"] = "wait"
    checkpoint_url: str | None = None
    checkpoint_writers: int = 1
    checkpoint_failure: Literal["fail", "warn"] = "fail"
    check_weights_every: int | None = None

    def __post_init__(self) -> None:
        require_range(
            self, AT_LEAST_ONE, {"keep_checkpoints": "3", "checkpoint_writers": "2", "check_weights_every": "100"}
        )
        require_range(self, NOT_NEGATIVE, {"checkpoint_interval": "1000"})
        if self.checkpoint_every not in (None, "auto"):
            seconds_of(str(self.checkpoint_every), "--checkpoint-every")
        if self.mtbf is not None:
            seconds_of(self.mtbf, "--mtbf")
        refuse_first(
            [
                (
                    self.checkpoint_url is not None and "://" not in self.checkpoint_url,
                    f"--checkpoint-url is {self.checkpoint_url}.",
                    "It is no URL.",
                    "give one that fsspec can write, such as s3://bucket/run; for a folder use --output-dir.",
                ),
                (
                    self.mtbf is not None and self.checkpoint_every != "auto",
                    f"--mtbf {self.mtbf} is given without --checkpoint-every auto.",
                    "It would change nothing.",
                    "let the time between checkpoints follow from it with --checkpoint-every auto.",
                ),
                (
                    self.checkpoint_overlap == "skip" and self.checkpoint_mode == "sync",
                    "--checkpoint-overlap skip is given with --checkpoint-mode sync.",
                    "No checkpoint overlaps another one then.",
                    "leave one of them out.",
                ),
                (
                    self.checkpoint_overlap == "skip" and self.checkpoint_interval == 0,
                    "--checkpoint-overlap skip is given without --checkpoint-interval.",
                    "Only checkpoints of that interval are skipped, and there are none.",
                    "give the interval as --checkpoint-interval 1000, or leave the other one out.",
                ),
            ]
        )


def seconds_between(options: CheckpointOptions) -> tuple[float | None, float] | None:
    """Seconds between two checkpoints (None: to be chosen) and between two failures; None: no checkpoints by time."""
    if options.checkpoint_every is None:
        return None
    mtbf = seconds_of(options.mtbf or _MTBF, "--mtbf")
    every = options.checkpoint_every
    return None if every == "auto" else seconds_of(every, "--checkpoint-every"), mtbf
