"""What comes into a container and what leaves it: the job's source, where no toolkit has fetched it, and the model."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.aws import explained
from hvdtrain.launch.sagemaker.container.contract import Container
from hvdtrain.launch.sagemaker.spec import TASK_PROGRAM

WEIGHTS = "model.safetensors"
RESULT = "result.json"

_DIRECTORY = "sagemaker_submit_directory"
_SECONDS = 60  # without a byte from S3


def source_folder(container: Container) -> Path:
    """Where workers start: the folder that `sagemaker_submit_directory` names, /opt/ml/code, or /opt/ml."""
    named = container.hyperparameters.get(_DIRECTORY)
    folders = [Path(named)] if isinstance(named, str) and named.startswith("/") else []
    folders.append(container.folders.code)
    return next((folder for folder in folders if folder.is_dir()), container.folders.base)


def fetch_source(container: Container) -> None:
    """Unpack the source archive from S3 into /opt/ml/code, if workers need it.

    Raises:
        UsageError: there is no boto3, no right to read the archive, or something in the archive that leads out of it.
        HvdtrainError: S3 does not answer.
    """
    place = container.hyperparameters.get(_DIRECTORY)
    if not isinstance(place, str) or not place.startswith("s3://") or not _is_needed(container):
        return
    container.folders.code.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        _download(place, archive.name)
        try:
            with tarfile.open(archive.name, "r:gz") as packed:
                packed.extractall(container.folders.code, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise UsageError(
                f"The source archive {place} cannot be unpacked: {error}.",
                "Workers would have nothing to run.",
                "make it again: `Estimator.fit` does, or `tar -czf sourcedir.tar.gz -C SOURCE .`.",
            ) from error


def _is_needed(container: Container) -> bool:
    """Not where the toolkit has unpacked it; nor for a task that comes with hvdtrain, without a config file: it then
    holds the toolkit's program and nothing else."""
    own = container.hyperparameters
    program = own.get("sagemaker_program", TASK_PROGRAM)
    if (container.folders.code / str(program)).is_file():
        return False
    return program != TASK_PROGRAM or ":" in str(own.get("task", "")) or "config" in own


def _download(place: str, path: str) -> None:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(
            f"The job's source is {place}, and boto3 is not installed.",
            "Nothing else here can read from S3.",
            "pip install 'hvdtrain[sagemaker]' into the image, or put the source into the image and name its folder in "
            f"{_DIRECTORY}.",
        ) from error
    uri = urlsplit(place)
    with explained(f"Fetching {place}"):
        config = Config(retries={"mode": "standard"}, connect_timeout=_SECONDS, read_timeout=_SECONDS)
        boto3.client("s3", config=config).download_file(uri.netloc, uri.path.lstrip("/"), path)


def export_model(run_folder: Path, model: Path) -> bool:
    """Copy the final weights, the config and the result, which SageMaker packs into model.tar.gz.

    Returns:
        Whether there was a result: a dry run has none.

    Raises:
        HvdtrainError: the weights are not there, or the folder cannot be written.
    """
    if not (run_folder / RESULT).is_file():
        return False
    try:
        newest = (run_folder / "checkpoints" / "latest").read_text().strip()
        model.mkdir(parents=True, exist_ok=True)
        for source in (run_folder / "checkpoints" / newest / WEIGHTS, run_folder / "config.yaml", run_folder / RESULT):
            temporary = model / f".{source.name}.tmp"  # a job that is stopped meanwhile leaves no half file
            shutil.copyfile(source, temporary)
            temporary.replace(model / source.name)
    except OSError as error:
        raise HvdtrainError(
            f"The model cannot be copied from {run_folder} to {model}: {error}.",
            "SageMaker would keep no model of this job.",
            "see that the disk has room; the weights are in the run folder's newest checkpoint.",
        ) from error
    return True
