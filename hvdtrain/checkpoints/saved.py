"""What became of a checkpoint that was begun: the same on all ranks once they have collected it."""

from dataclasses import dataclass, field
from typing import Final

from hvdtrain.errors import HvdtrainError

_NAMED: Final = 5  # arrays of weights in a message

FINITE_BY_OPTIONS: Final = (
    "lower --lr, lengthen --warmup-epochs, or set --max-grad-norm; --resume auto continues from the previous "
    "checkpoint."
)
"""What a user of `hvdtrain train` can do where weights are not finite."""


@dataclass(frozen=True)
class Saved:
    step: int
    path: str = ""  # its folder; empty where it was not written
    size: int = 0  # bytes of its arrays
    write_seconds: float = 0.0  # how long the thread took
    failure: tuple[str, str, str] | None = None  # why it was not written: fact, conflict and hint; else None
    is_fatal: bool = False  # whether training must not go on without it
    diverged: bool = False  # it was not written because the ranks' weights differ; `failure` says so, too
    digest: int = 0  # of the weights that a rank has copied for its part
    hashes: dict[str, str] = field(default_factory=dict)  # file → SHA-256 of a part that is not published yet


def failure_of(saved: Saved) -> HvdtrainError:
    """The error that all ranks raise because a checkpoint was not written."""
    fact, conflict, hint = saved.failure or ("", "", "")
    return HvdtrainError(fact, conflict, hint).on_all_ranks()


def not_finite(step: int, names: list[str], hint: str) -> Saved:
    """Weights and buffers with these names hold NaN or infinity."""
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    failure = (
        f"After step {step} weights are NaN or infinite: {some}.",
        "Training cannot go on from a checkpoint of them, so none was written; those from before are still good.",
        hint,
    )
    return Saved(step, failure=failure, is_fatal=True)


def diverged(step: int) -> Saved:
    """Ranks had different weights."""
    failure = (
        f"The weights for the checkpoint of step {step} differ between ranks.",
        "The ranks no longer train one model, so none was written; those from before are still good.",
        "look for code in the task that changes weights differently on some ranks.",
    )
    return Saved(step, failure=failure, diverged=True)


def not_written(step: int, error: BaseException) -> Saved:
    """The disk or the network has refused."""
    failure = (
        f"The checkpoint of step {step} could not be written: {error}.",
        "Training would continue without a checkpoint to return to.",
        "leave the run folder in its place while a run writes to it; it may have been removed or moved."
        if isinstance(error, FileNotFoundError)
        else "free space or choose another --output-dir; --resume auto continues from the previous checkpoint.",
    )
    return Saved(step, failure=failure)
