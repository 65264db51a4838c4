"""What user code has changed when an epoch begins, in both frameworks: taken over, or refused, by all ranks together.

docs/user-code.md has the whole table. Nothing here is looked at in each step.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.errors import HvdtrainError

_NAMED = 3


def agree_on_trained(comm: Communicator, look: Callable[[], Sequence[str]], compares: bool = True) -> None:
    """Look at what user code has changed, and make sure that all ranks train the same. Collective, one small message.

    Args:
        look: returns the names of the weights that this rank trains from now on.
        compares: whether these are the same on all ranks: stages of a pipeline have different ones.

    Raises `HvdtrainError`: on all ranks: `look` has raised it on one of them, or they train different weights.
    """
    names: Sequence[str] = ()
    refuses = False
    try:
        names = look()
    except HvdtrainError:
        refuses = True
    digest = zlib.crc32("\n".join(names).encode()) if compares else 0
    sent = np.array([refuses, digest, -digest], np.int64)
    refused, largest, smallest = comm.allreduce(sent, "hvdtrain.changes", "max").tolist()
    if refused:
        agree(comm, look, "hvdtrain.changes.refused")
    if largest != -smallest:
        raise _different(gather_json(comm, list(names), "hvdtrain.changes.trained"))


def _different(names: list[list[str]]) -> HvdtrainError:
    rank = next(rank for rank, of_rank in enumerate(names) if of_rank != names[0])
    others = sorted(set(names[rank]) ^ set(names[0]))
    more, fewer = (rank, 0) if others[0] in names[rank] else (0, rank)
    return HvdtrainError(
        f"Rank {more} trains {listed(others)}, and rank {fewer} does not.",
        "The ranks would no longer train one model.",
        "freeze and unfreeze layers at the same events on all ranks, and decide it from values that all of them share.",
    ).on_all_ranks()


def listed(names: Sequence[str]) -> str:
    """The first of them, for people."""
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


class KeptSettings:
    """Settings of the whole process that decide what a step computes.

    Args: `read`: for each setting, by its name for people, what reads it. Read now for the first time.
    """

    def __init__(self, read: Mapping[str, Callable[[], object]]) -> None:
        self._read = read
        self._kept = {name: of() for name, of in read.items()}

    def require_unchanged(self) -> None:
        """Raise `HvdtrainError` for a setting that is not what it was."""
        for name, of in self._read.items():
            if (now := of()) != self._kept[name]:
                raise HvdtrainError(
                    f"{name} is {now}; when training began it was {self._kept[name]}.",
                    "It decides what a training step computes, and a resumed run would begin with the other one.",
                    "set it in build_model(), or put it back before the callback ends.",
                )


def learning_rate_changed(value: object, expected: object) -> HvdtrainError:
    """User code has set the optimizer's learning rate."""
    return HvdtrainError(
        f"The optimizer's learning rate is {value}; the last step has set it to {expected}.",
        "It is set again before each step, so that what a callback or a scheduler sets has no effect.",
        "choose --lr-schedule, --warmup-epochs and --lr, and give build_optimizer() groups with rates of their own.",
    )
