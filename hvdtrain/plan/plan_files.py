"""What a plan leaves: its numbers, its picture, and a config that trains in the recommended way."""

from pathlib import Path
from tempfile import NamedTemporaryFile

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically, write_json
from hvdtrain.plan.check_predictions import config_of
from hvdtrain.plan.picture import drawn
from hvdtrain.plan.predicted_plan import Plan
from hvdtrain.task.task import Task


def require_folder(folder: Path) -> None:
    """Make the folder for a plan. Raises `UsageError` where that cannot be, or where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"The folder {folder} cannot be written: {error.strerror or error}.",
        "The plan would be lost.",
        "choose another one with --out.",
    )


def write_plan(plan: Plan, config: TrainConfig, kind: type[Task], workers: int, folder: Path) -> list[str]:
    """Write plan.json, plan.svg and, if a way is recommended, plan.yaml.

    Returns lines for people, of which the last one is the command that trains so, if there is one.

    Args:
        workers: of this job, for which the config is, if the plan has that number; else for its smallest one.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "plan.json", plan.to_json())
        write_atomically(folder / "plan.svg", drawn(plan, f"{config.task} in {kind.framework}"))
        best = plan.recommended.get(workers) or next(filter(None, plan.recommended.values()), None)
        path = folder / "plan.yaml"
        if best is None:
            path.unlink(missing_ok=True)  # an earlier plan's, which would train what does not fit
            return [f"wrote plan.json and plan.svg into {folder}"]
        count = best.layout.workers
        start = (
            f"hvdtrain launch local -np {count} -- train --config {path}" if count > 1 else f"hvdtrain --config {path}"
        )
        head = f"# {best.name}, on {count} workers: {start}\n"
        write_atomically(path, (head + dump_config(config_of(best.layout, config))).encode())
    except OSError as error:
        raise _unwritable(folder, error) from error
    options = " ".join(best.options or ())
    return [
        f"recommended for {count} worker{'s' * (count > 1)}: {best.name}{', ' * bool(options)}{options}",
        f"wrote plan.json, plan.svg and plan.yaml into {folder}; to train so:",
        start,
    ]
