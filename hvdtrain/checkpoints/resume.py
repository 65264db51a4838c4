"""Find the checkpoint to continue from, and refuse one that belongs to another training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_sharding.storage import is_remote
from hvdtrain.checkpoints.format import Checkpoint, DamagedCheckpointError, read_checkpoint
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.errors import UsageError

POINTERS = ("latest", "best")  # files beside checkpoints that name one of them


def checkpoint_at(path: Path, given_as: str = "--resume") -> Checkpoint:
    """The checkpoint that a path names: a step folder, or the newest sound one of a run folder. `given_as`: by which
    option, for messages. Raises UsageError: the path holds no sound checkpoint."""
    path = followed(path)
    if not path.is_dir():
        raise UsageError(
            f"There is no folder {path}.",
            f"It was given as {given_as}.",
            "give a run folder, one of its checkpoints/step_… folders, or checkpoints/best.",
        )
    if (path / "manifest.json").exists():
        try:
            return read_checkpoint(path)
        except DamagedCheckpointError as error:
            has_no_rights = isinstance(error.__cause__, PermissionError)
            raise UsageError(
                f"The checkpoint cannot be used: {error}.",
                f"It was named by {given_as}.",
                f"let this user read all files in {path}." if has_no_rights else "name an older one beside it.",
            ) from error
    store = path if path.name == "checkpoints" else path / "checkpoints"
    checkpoint = CheckpointStore(store, keep=1).newest()
    if checkpoint is None:
        raise UsageError(f"{path} holds no checkpoint.", f"It was given as {given_as}.", "check the path.")
    return checkpoint


def followed(path: Path) -> Path:
    """The checkpoint's folder that the file `latest` or `best` beside it names; any other path as it is."""
    if path.name in POINTERS and path.is_file() and path.parent.name == "checkpoints":
        return path.parent / path.read_text(errors="replace").strip()
    return path


def checkpoints_of(resume: str) -> Path | None:
    """The folder of the checkpoints among which `--resume PATH` names one."""
    if resume in ("auto", "never") or is_remote(resume):
        return None
    path = followed(Path(resume).absolute())
    if (path / "manifest.json").exists():
        return path.parent
    return path if path.name == "checkpoints" else path / "checkpoints"


def require_same_training(checkpoint: Checkpoint, about: dict[str, Any]) -> Checkpoint:
    """`checkpoint`; raises `UsageError` unless it continues as the training that `about` describes. World size, epochs
    and learning rate may differ; what decides which record comes next may not."""
    # Checkpoints from before there were modes, optimizers by name and orders of blocks do not say.
    first_order = 1 if checkpoint.about.get("shuffle") == "block" else None
    written = {"mode": "file", "optimizer": None, "block_order": first_order, **checkpoint.about}
    by_pipe = about["mode"] == "pipe"
    for key, what, hint in _MUST_AGREE:
        saved, wanted = written.get(key), about.get(key)
        if key == "task_args":
            now = about.get("task_defaults", {})
            then = {**now, **written.get("task_defaults", {})}  # older checkpoints do not say
            saved, wanted = _differing({**then, **(saved or {})}, {**now, **(wanted or {})})
        if saved != wanted:
            raise UsageError(
                f"The checkpoint of step {checkpoint.position.step} is from {what} {_short(saved)}, "
                f"not {_short(wanted)}.",
                "Its weights and its place in the data mean nothing in this run.",
                f"{_PIPE_HINTS.get(key, hint) if by_pipe else hint}, or choose another --output-dir.",
            )
    return checkpoint


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments in which the two differ, of each."""
    equal = {name for name in first if name in second and first[name] == second[name]}
    return _without(first, equal), _without(second, equal)


def _without(arguments: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


_MUST_AGREE = (
    ("task", "the task", "give the same --task"),
    ("framework", "the framework", "give the same --framework"),
    ("mode", "a run with --data.mode", "give the same --data.mode"),
    (
        "data",
        "the data set with fingerprint",
        "give the same --data.dir with unchanged files, or the same object, and the same options for its parts",
    ),
    ("validation", "the validation set with fingerprint", "give the same --data.dir and --data.validation"),
    ("task_args", "a task built with", "give the same --task-args"),
    ("optimizer", "a run with --optimizer", "give the same --optimizer (None: leave it out)"),
    ("global_batch_size", "a run with global batch size", "give the same --global-batch-size"),
    ("seed", "a run with seed", "give the same --seed"),
    ("shuffle", "a run with shuffle", "give the same --data.shuffle"),
    (
        "block_order",
        "a version of hvdtrain with the order of --data.shuffle block",
        "go on with that version, or begin a training with these weights (--init-weights)",
    ),
    (
        "virtual_workers",
        "a run with --virtual-workers",
        "give the same --virtual-workers (None: leave it out), or begin a training with these weights (--init-weights)",
    ),
    (
        "compute_threads",
        "a run with threads for each worker:",
        "give the same --compute-threads, since their number changes the last bits",
    ),
)
_PIPE_HINTS = {"data": "give the same --data.pipe-plan"}


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(each)}" for name, each in value.items()) or "no arguments"
    text = str(value)
    return text[:12] + "…" if len(text) > 40 else repr(value)
