"""The checkpoints of one run: names, the `latest` pointer, how many are kept, and which one to resume from."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from hvdtrain.checkpoints.format import Checkpoint, DamagedCheckpointError, read_checkpoint, write_checkpoint
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically

_NAME = re.compile(r"step_(\d{8,})")
_log = logging.getLogger(__name__)


class CheckpointStore:
    """A folder `checkpoints/` with one folder a checkpoint. Used by rank 0 only.

    Args:
        folder: made when the first checkpoint is saved.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then move `latest` to it, then remove what it makes superfluous.

        That is older ones beyond `keep`, and those of later steps: they are from before a resume that went back
        further, and would otherwise be taken for the newest.

        Raises:
            OSError: the older checkpoints are intact.
        """
        self._remove_leftovers()
        path = self._folder / f"step_{checkpoint.position.step:08d}"
        write_checkpoint(path, checkpoint)
        write_atomically(self._folder / "latest", f"{path.name}\n".encode())
        paths = self.paths()
        end = paths.index(path) + 1
        for superfluous in paths[: max(0, end - self._keep)] + paths[end:]:
            _log.info("removing %s", superfluous)
            shutil.rmtree(superfluous)
        return path

    def _remove_leftovers(self) -> None:
        """What a run that was killed while it saved or removed has left behind."""
        for leftover in self._folder.glob(".*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def paths(self) -> list[Path]:
        """All checkpoint folders, the oldest first."""
        if not self._folder.is_dir():
            return []
        found = [(int(match[1]), path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def newest(self) -> Checkpoint | None:
        """The newest sound checkpoint, or None where there is none at all.

        Raises:
            UsageError: there are checkpoints, but all of them are damaged: starting anew must be the user's choice.
        """
        problems = []
        for path in reversed(self.paths()):
            try:
                checkpoint = read_checkpoint(path)
            except DamagedCheckpointError as error:
                _log.warning("skipping a damaged checkpoint: %s", error)
                problems.append(str(error))
                continue
            return checkpoint
        if problems:
            raise UsageError(
                f"Every checkpoint in {self._folder} is damaged; the newest: {problems[0]}.",
                "Training cannot be resumed, and starting anew would overwrite this folder.",
                "choose another --output-dir, or move the folder away.",
            )
        return None
