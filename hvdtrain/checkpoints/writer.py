"""Saving in a job of many ranks: rank 0 writes, all learn whether it worked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.adapters.interface import State
from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm import Communicator, broadcast_json
from hvdtrain.errors import HvdtrainError
from hvdtrain.position import Position


class CheckpointWriter:
    """Args: `about` is what the manifest says besides position and hashes."""

    def __init__(self, comm: Communicator, store: CheckpointStore, about: dict[str, Any]) -> None:
        self._comm = comm
        self._store = store
        self._about = about

    def save(self, state: Callable[[], State], position: Position) -> Path:
        """Save from rank 0, whose state stands for all. Collective; returns the checkpoint's folder.

        Raises:
            HvdtrainError: on all ranks, where rank 0 could not write. Older checkpoints are intact.
        """
        answer = None
        if self._comm.topology.is_root:
            answer = self._try_to_save(state, position)
        path, problem = broadcast_json(self._comm, answer, "hvdtrain.checkpoint.saved")
        if problem:
            raise HvdtrainError(
                f"The checkpoint of step {position.step} could not be written: {problem}.",
                "Going on would train without a way back.",
                "free space or choose another --output-dir; --resume auto continues from the previous checkpoint.",
            ).on_all_ranks()
        return Path(path)

    def _try_to_save(self, state: Callable[[], State], position: Position) -> tuple[str, str | None]:
        try:
            return str(self._store.save(Checkpoint(state(), position, self._about))), None
        except OSError as error:
            return "", str(error)
