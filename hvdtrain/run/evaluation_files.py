"""The files of an evaluation: its numbers as JSON, and a page of HTML beside it."""

import json
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.checkpoints.resume import followed
from hvdtrain.errors import UsageError
from hvdtrain.files import finite, write_atomically
from hvdtrain.report.evaluation_page import evaluation_page
from hvdtrain.run.evaluation import SetResult
from hvdtrain.run.trained_model import TrainedModel
from hvdtrain.version import __version__


def default_place(source: Path, step: int) -> Path:
    """RUN/evaluations/step_NNNNNNNN.json of a run folder or checkpoint."""
    path = followed(source)
    folder = path.parent if (path / "manifest.json").exists() else path
    run = folder.parent if folder.name == "checkpoints" else folder
    return run / "evaluations" / f"step_{step:08d}.json"


def require_free(place: Path, force: bool) -> None:
    """Raise UsageError where a file is there already and is not to be replaced, or cannot be written, or its name is
    not FILE.json."""
    if place.suffix != ".json":
        raise UsageError(f"--output is {place}.", "The result is written as JSON.", "give a name that ends in .json.")
    for path in (place, place.with_suffix(".html")):
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "The result is a file.", "choose another --output.")
    taken = [path for path in (place, place.with_suffix(".html")) if path.exists()]
    if taken and not force:
        raise UsageError(
            f"{taken[0]} is there already.", "It would be lost.", "choose another --output, or add --force."
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place.with_name(f".{place.name}.writable"), b"")
        place.with_name(f".{place.name}.writable").unlink()
    except OSError as error:
        raise _unwritable(place, error, "The result would be lost.") from error


def written(place: Path, trained: TrainedModel, results: Mapping[str, SetResult]) -> None:
    """Write the numbers to `place`, and the page beside it. Raises UsageError: they cannot be written."""
    content = {
        "run": str(trained.source),
        "task": trained.config.task,
        "framework": trained.task.framework,
        "step": trained.step,
        "workers": trained.comm.topology.size,
        "averaged_weights": trained.config.ema_decay is not None,
        "hvdtrain": __version__,
        "sets": {name: result.to_json() for name, result in results.items()},
    }
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place.with_suffix(".html"), evaluation_page(content).encode(errors="replace"))
        write_atomically(place, (json.dumps(finite(content), allow_nan=False) + "\n").encode())
    except OSError as error:
        raise _unwritable(place, error, "The result is lost.") from error


def _unwritable(place: Path, error: OSError, conflict: str) -> UsageError:
    return UsageError(f"{place} cannot be written: {error.strerror or error}.", conflict, "choose another --output.")
