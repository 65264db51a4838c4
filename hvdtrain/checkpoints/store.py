"""The checkpoints of one run: names, how many are kept, which one to resume from, the pointers `latest` and `best`."""

import logging
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints.format import (
    REPLACED,
    Checkpoint,
    DamagedCheckpointError,
    Position,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically

_STAGED = ".parts.tmp"  # ends the name of a folder into which several ranks write
CHECKPOINT_NAME = re.compile(r"step_(\d{8,})")
_log = logging.getLogger(__name__)


def newest_first(names: list[str], latest: str) -> list[str]:
    """Those up to `latest` first: later ones are of a branch that training has left. `names`: the oldest first."""
    end = names.index(latest) + 1 if latest in names else len(names)
    return [*reversed(names[:end]), *reversed(names[end:])]


@dataclass(eq=False)
class CheckpointStore:
    """A folder `checkpoints/` with one folder a checkpoint. Used by rank 0 only, except for `staging`."""

    folder: Path  # made when the first checkpoint is saved
    keep: int  # how many of the newest stay, besides the best
    copy: Callable[[Path], None] | None = None  # copies a checkpoint that is on disk. Raises OSError

    def save(self, checkpoint: Checkpoint, best: Best | None = None) -> Path:
        """Write a checkpoint; see `put`."""
        return self.put(checkpoint.position, best, lambda folder: write_checkpoint(folder, checkpoint))

    def put(self, position: Position, best: Best | None, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint, then move the pointers, then remove what it makes superfluous.

        That is older ones beyond `keep` that are not the best, and those of later steps: they are from before a resume
        that went back further, and would otherwise be taken for the newest.

        Args:
            best: where `best` is to point; default: to the best that `position` knows. Both are kept.
            write: makes or changes the folder that it receives. Raises OSError; older checkpoints are intact then.
        """
        self.restore_replaced()
        self._remove_leftovers()
        path = self.path(position.step)
        write(path)
        self._make_latest(path)
        known = position.history.best
        self._point_to(best or known)
        self._remove_superfluous(path, {entry for entry in (best, known) if entry is not None})
        if self.copy is not None:
            self.copy(path)
        return path

    def staging(self, step: int) -> Path:
        """The folder for parts of the checkpoint of `step`, which several ranks write."""
        return self.folder / f".{self.path(step).name}{_STAGED}"

    def adopt(self, checkpoint: Checkpoint, origin: Path | None, replaces: bool = False) -> None:
        """Begin with a checkpoint, which is the latest one then. It is written here, after the best one of the folder
        `origin` that it is from. If this folder already has one of that step, that is kept unless `replaces`. Raises
        OSError."""
        path = self.path(checkpoint.position.step)
        if replaces or not path.is_dir():
            self._bring_best(checkpoint.position.history.best, origin)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_checkpoint(path, checkpoint)
        self._make_latest(path)
        if self.copy is not None:
            self.copy(path)

    def resume_from(self, position: Position) -> None:
        """Continue after `position`: `latest` points to its checkpoint, and `best` to its best one.

        So a run that was sent back to an older checkpoint, and crashes before its first save, is not taken up from a
        newer one, of the branch that it left. A run that was killed may have left `best` behind. Raises
        OSError: it cannot be written.
        """
        for abandoned in self.folder.glob(f".*{_STAGED}"):
            shutil.rmtree(abandoned)
        best = position.history.best
        if self.path(position.step).is_dir():
            self._make_latest(self.path(position.step))
        pointed = _step_of(self.named("best")) if self.named("best").is_dir() else None
        if pointed is not None and (0 if best is None else best.step) < pointed <= position.step:
            return  # what was validated at the end of an interrupted run, is not counted, and is in result.json
        if self.folder.is_dir():
            self._point_to(best)

    def _bring_best(self, best: Best | None, origin: Path | None) -> None:
        if best is not None and origin is not None and not self.path(best.step).exists():
            with suppress(DamagedCheckpointError):  # the run continues, and `_point_to` warns of it
                write_checkpoint(self.path(best.step), read_checkpoint(origin / self.path(best.step).name))

    def go_back(self, step: int) -> int | None:
        """Let training resume from the newest checkpoint that has at most `step` updates; returns how many it has.

        None: there is no such checkpoint, and `latest` stays as it is. Raises OSError.
        """
        latest, paths = self.named("latest"), self.paths()
        older = (
            paths[: paths.index(latest) + 1] if latest in paths else paths
        )  # later ones are of a branch that was left
        found = next((path for path in reversed(older) if _step_of(path) <= step), None)
        if found is None:
            return None
        self._make_latest(found)
        if self.copy is not None:
            self.copy(found)
        return _step_of(found)

    def _remove_superfluous(self, path: Path, best: set[Best]) -> None:
        stays = {self.path(entry.step) for entry in best} | {self.named("best")}
        paths = self.paths()
        end = paths.index(path) + 1
        older = [path for path in paths[: max(0, end - self.keep)] if path not in stays]
        for superfluous in older + paths[end:]:
            _log.info("removing %s", superfluous)
            remove_checkpoint(superfluous)

    def _make_latest(self, path: Path) -> None:
        write_atomically(self.folder / "latest", f"{path.name}\n".encode())

    def _point_to(self, best: Best | None) -> None:
        pointer = self.folder / "best"
        if best is None:
            pointer.unlink(missing_ok=True)
        elif self.path(best.step).is_dir():
            write_atomically(pointer, f"{self.path(best.step).name}\n".encode())
        else:  # it could not be written, say: the best of those that are there stays what it was
            if not self.named("best").is_dir():
                pointer.unlink(missing_ok=True)
            _log.warning("the best checkpoint, of step %d, is not in %s", best.step, self.folder)

    def named(self, pointer: str) -> Path:
        """The folder that `pointer` names; one that is not there where it names none."""
        file = self.folder / pointer
        name = file.read_text(errors="replace").strip() if file.is_file() else ""
        return self.folder / (name if CHECKPOINT_NAME.fullmatch(name) else ".none")

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of that step, which need not be there."""
        return self.folder / f"step_{step:08d}"

    def restore_replaced(self) -> None:
        """Put a checkpoint back that was taken away by a run that was killed before it put another in its place. Only
        for the process that holds the run folder. Raises OSError."""
        for hidden in self.folder.glob(REPLACED.format("*")):
            path = self.folder / hidden.name.split(".")[1]
            if not path.exists():
                hidden.rename(path)

    def _remove_leftovers(self) -> None:
        """What a run that was killed while it saved or removed has left behind. Parts may be of a later checkpoint."""
        for leftover in self.folder.glob(".*.tmp"):
            if leftover.name.endswith(_STAGED):
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def paths(self) -> list[Path]:
        """All checkpoint folders, the oldest first."""
        if not self.folder.is_dir():
            return []
        numbered = [
            (int(match[1]), path) for path in self.folder.iterdir() if (match := CHECKPOINT_NAME.fullmatch(path.name))
        ]
        return [path for _, path in sorted(numbered)]

    def newest(self) -> Checkpoint | None:
        """The newest sound checkpoint, or None where there is none at all. Later ones than `latest` come last. Raises
        UsageError: one may not be read; or all are damaged: starting again must be the user's choice."""
        problems = []
        for name in newest_first([path.name for path in self.paths()], self.named("latest").name):
            try:
                return read_checkpoint(self.folder / name)
            except DamagedCheckpointError as error:
                if isinstance(error.__cause__, PermissionError):  # it may be sound, and would be replaced
                    raise UsageError(
                        f"{error}.",
                        "Whether the checkpoint is sound cannot be known, and it would be skipped.",
                        f"let this user read all files in {self.folder / name}.",
                    ) from error
                _log.warning("skipping a damaged checkpoint: %s", error)
                problems.append(str(error))
        if problems:
            raise UsageError(
                f"Every checkpoint in {self.folder} is damaged; the newest: {problems[0]}.",
                "Training cannot be resumed, and starting from the beginning would overwrite this folder.",
                "choose another --output-dir, or move the folder away.",
            )
        return None


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
