"""Saving in a job of many ranks: rank 0 writes, all learn whether it worked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints.finite_weights import weights_not_finite
from hvdtrain.checkpoints.format import Checkpoint, DamagedCheckpointError
from hvdtrain.checkpoints.position import Position
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.long_work import SAVE_SECONDS, do_while_others_wait
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.errors import HvdtrainError
from hvdtrain.state import State

_NAMED: Final = 5  # arrays of weights in a message


class CheckpointWriter:
    """Saves, on behalf of all ranks.

    Args:
        comm: the other ranks.
        store: where to.
        about: what the manifest says besides position and hashes.
        infinite: names of weights and buffers that may hold infinity.
    """

    def __init__(
        self, comm: Communicator, store: CheckpointStore, about: dict[str, Any], infinite: frozenset[str] = frozenset()
    ) -> None:
        self._comm = comm
        self._store = store
        self._about = about
        self._infinite = infinite

    def save(self, state: Callable[[], State], position: Position, best: Best | None = None) -> Path:
        """Save from rank 0, whose state stands for all. Collective; returns the checkpoint's folder.

        Args:
            state: called on rank 0 only.
            position: where training stands.
            best: where `best` is to point; default: to the best that `position` knows.

        Raises:
            HvdtrainError: on all ranks, where weights are not finite or rank 0 could not write. Older checkpoints are
                intact.
        """
        return self._on_root(position.step, lambda: self._save_finite(state(), position, best))

    def move_to(self, position: Position, best: Best | None = None) -> Path:
        """The newest checkpoint is of `position` but for its standing: write that into it. As `save` otherwise."""
        return self._on_root(position.step, lambda: (str(self._store.move_to(position, best)), []))

    def _save_finite(self, state: State, position: Position, best: Best | None) -> tuple[str, list[str]]:
        bad = weights_not_finite(state, self._infinite)
        return ("", bad) if bad else (str(self._store.save(Checkpoint(state, position, self._about), best)), [])

    def _on_root(self, step: int, work: Callable[[], tuple[str, list[str]]]) -> Path:
        is_root = self._comm.topology.is_root
        answer = do_while_others_wait(
            self._comm, lambda: _try(work) if is_root else None, "hvdtrain.checkpoint", SAVE_SECONDS
        )
        path, bad, problem = broadcast_json(self._comm, answer, "hvdtrain.checkpoint.saved")
        if bad:
            raise HvdtrainError(
                f"After step {step} weights are NaN or infinite: {_some(bad)}.",
                "Training cannot go on from a checkpoint of them, so none was written; those from before are still "
                "good.",
                "lower --lr, lengthen --warmup-epochs, or set --max-grad-norm; --resume auto continues from the "
                "previous checkpoint.",
            ).on_all_ranks()
        if problem:
            raise HvdtrainError(
                f"The checkpoint of step {step} could not be written: {problem}.",
                "Training would continue without a checkpoint to return to.",
                "free space or choose another --output-dir; --resume auto continues from the previous checkpoint.",
            ).on_all_ranks()
        return Path(path)


def _try(work: Callable[[], tuple[str, list[str]]]) -> tuple[str, list[str], str | None]:
    """What `work` returned, and what the file system had against it."""
    try:
        return *work(), None
    except (OSError, DamagedCheckpointError) as error:
        return "", [], str(error)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
