"""How the run in a folder began: so that the command which began it goes on with it, and does not begin it again."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from data_sharding.storage import is_remote
from hvdtrain.audit.ledger import CATALOG, LEDGER, PIPE_NOTE, audit_of, copy_audit
from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.checkpoints.resume import checkpoints_of, followed
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.files import write_json
from hvdtrain.topology.launcher_variables import JOB_NAME_VARIABLE, RESTART_VARIABLE
from hvdtrain.world_channel import WORLD_VARIABLE

_FILE: Final = ".begun.json"
_OVERWRITTEN: Final = ("checkpoints/step_*", f"audit/{LEDGER}")
_COPIED: Final = (
    *(f"checkpoints/{name}" for name in ("step_*", ".step_*", "latest", "best")),
    *(f"audit/{name}" for name in (LEDGER, CATALOG, "segment_*", PIPE_NOTE)),
)
"""What a start brings from another run."""


@dataclass(frozen=True)
class Begun:
    """What a run folder says of that."""

    job: str | None  # which job of `hvdtrain launch` trained here last; None: it was none of these
    resume: str  # its --resume; a path is absolute
    is_whole: bool  # whether all of another run that it goes on with is here

    @classmethod
    def in_folder(cls, folder: Path) -> "Begun | None":
        """None: nothing has begun there, or an earlier version wrote nothing of it."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads((folder / _FILE).read_text()))
        return None


def goes_on_after_loss() -> bool:
    """Whether the launcher has started this job again, or formed another world of it."""
    return os.environ.get(RESTART_VARIABLE, "0") != "0" or os.environ.get(WORLD_VARIABLE, "1") != "1"


def holds_run(folder: Path) -> bool:
    """Whether a new run would write over files of another one, or remove them."""
    begun = Begun.in_folder(folder)
    if (folder / "metrics.jsonl").exists():  # which is never there before all is
        return True
    has_files = any(file for name in _OVERWRITTEN for file in folder.glob(name))
    return has_files and (begun is None or begun.is_whole)


def resume_now(config: TrainConfig) -> str:
    """--resume for this start: "auto" where the run folder has what this very command began, or this job before a loss.
    What was there before is not it."""
    if config.output_dir is None:
        return config.resume
    folder = Path(config.output_dir)
    begun, job = Begun.in_folder(folder), os.environ.get(JOB_NAME_VARIABLE)
    if config.resume == "auto":  # what is there may be a part of what a lost start was to copy
        return begun.resume if begun is not None and not begun.is_whole else "auto"
    if begun is not None and begun.is_whole:
        is_same_job = goes_on_after_loss() and job is not None and job == begun.job
        is_same_origin = begun.resume == _absolute(config.resume) and is_elsewhere(config.resume, folder)
        if is_same_job or is_same_origin:
            return "auto"
    # The disk with the folder may be lost, too; there may be a copy behind --checkpoint-url.
    return "auto" if config.resume == "never" and goes_on_after_loss() and not holds_run(folder) else config.resume


def is_elsewhere(resume: str, folder: Path) -> bool:
    """Whether `resume` names a checkpoint outside of the run folder."""
    if resume in ("auto", "never"):
        return False
    own = (folder.resolve(), (folder / "checkpoints").resolve())
    return is_remote(resume) or not any(Path(resume).resolve().is_relative_to(place) for place in own)


def begin_in(folder: Path, store: CheckpointStore, resume: str, named: Checkpoint | None) -> None:
    """Note that training begins in the folder. Another run's checkpoint `named`, which `resume` leads to, and what
    belongs to it, are put there first: a job that is lost before its own first one goes on from it. Rank 0 only.

    Raises OSError: the folder cannot be written. The same command may then begin again.
    """
    earlier = Begun.in_folder(folder)
    if earlier is not None and not earlier.is_whole:
        _remove_copied(folder)
    if named is not None and is_elsewhere(resume, folder):
        note_begun(folder, resume, is_whole=False)
        audit = audit_of(resume)
        if audit is not None:
            copy_audit(audit, folder / "audit")
        store.adopt(named, checkpoints_of(resume))
    elif named is not None:
        store.adopt(named, None, replaces=not _leads_to(resume, store, named))
    note_begun(folder, resume, is_whole=True)


def _remove_copied(folder: Path) -> None:
    """What a start that was lost has copied, and nothing else."""
    for file in [file for name in _COPIED for file in folder.glob(name)]:
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()


def _leads_to(resume: str, store: CheckpointStore, named: Checkpoint) -> bool:
    """Whether `resume` means the folder's own checkpoint of that step, and not a copy of one somewhere in it."""
    place = followed(Path(resume).absolute()).resolve()
    return place in {each.resolve() for each in (store.path(named.position.step), store.folder, store.folder.parent)}


def note_begun(folder: Path, resume: str, *, is_whole: bool) -> None:
    """Write `Begun` into the folder. Where `resume` is "auto", how it began stays noted. Raises OSError."""
    earlier = Begun.in_folder(folder)
    began = earlier.resume if earlier is not None and resume == "auto" else _absolute(resume)
    write_json(folder / _FILE, asdict(Begun(os.environ.get(JOB_NAME_VARIABLE), began, is_whole)))


def _absolute(resume: str) -> str:
    return resume if resume in ("auto", "never") or is_remote(resume) else str(Path(resume).absolute())
