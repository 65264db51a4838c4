"""What a finished training leaves as the job's model: SageMaker packs the folder into model.tar.gz."""

from __future__ import annotations

import shutil
from pathlib import Path

from hvdtrain.errors import HvdtrainError

FILES = ("config.yaml", "result.json")
"""Of the run folder, beside the weights."""
WEIGHTS = "model.safetensors"


def export_model(run_folder: Path, model: Path) -> bool:
    """Copy the final weights, the config and the result; whether there was a result (a dry run has none).

    Raises:
        HvdtrainError: the weights are not there, or the folder cannot be written.
    """
    if not (run_folder / "result.json").is_file():
        return False
    try:
        newest = (run_folder / "checkpoints" / "latest").read_text().strip()
        model.mkdir(parents=True, exist_ok=True)
        _copy(run_folder / "checkpoints" / newest / WEIGHTS, model / WEIGHTS)
        for name in FILES:
            _copy(run_folder / name, model / name)
    except OSError as error:
        raise HvdtrainError(
            f"The model cannot be copied from {run_folder} to {model}: {error}.",
            "SageMaker would keep no model of this job.",
            "see that the disk has room; the weights are in the run folder's newest checkpoint.",
        ) from error
    return True


def _copy(source: Path, target: Path) -> None:
    """Under a temporary name first: a job that is stopped meanwhile leaves no half file."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
