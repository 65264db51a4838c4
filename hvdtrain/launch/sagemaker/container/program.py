"""What each worker of a container runs, and where: the source, and a command from hyperparameters and channels.

Whoever made the source's archive: nothing gets out of its folder, and it cannot fill memory or disk.
"""

import gzip
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.aws import explained
from hvdtrain.launch.sagemaker.container.contract import Container
from hvdtrain.launch.sagemaker.hyperparameters import worker_options
from hvdtrain.launch.sagemaker.source_archive import MAX_BYTES
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TASK_PROGRAM, HyperparameterValue

_DIRECTORY = "sagemaker_submit_directory"
_SECONDS = 60  # without a byte from S3
_PROGRAM = "sagemaker_program"
_CHUNK_BYTES = 2**20
_MOST_BYTES = 2 * MAX_BYTES
"""Of the expanded archive, and of its files: room for what `Estimator.fit` packs, with headers and padding."""
_TOO_LARGE = f"it expands to more than {_MOST_BYTES // 2**20} MiB; data belong in a channel"


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What every worker runs, and in which folder; `run_folder` gets hvdtrain's results, None for a user's script."""

    argv: tuple[str, ...]
    folder: Path
    run_folder: Path | None


def worker_command(container: Container) -> WorkerCommand:
    """`hvdtrain train` with the hyperparameters as its options, or the script that `sagemaker_program` names.

    Options that the user leaves open follow from the container: where the data are, how they come, and the run folder.
    That is /opt/ml/checkpoints where the job has a checkpoint location, and so goes on from there; else
    /opt/ml/output/data. Raises UsageError: a channel's folder, the pipe plan or the script is not there.
    """
    hyperparameters = container.hyperparameters
    folder = source_folder(container)
    program = hyperparameters.get(_PROGRAM)
    if isinstance(program, str) and program != TASK_PROGRAM:
        return WorkerCommand((*_interpreter(program, folder), *worker_options(hyperparameters)), folder, None)
    named = {_normal(name) for name in hyperparameters}
    values = dict(hyperparameters)
    checkpoints = container.folders.checkpoints
    output_dir = checkpoints if checkpoints.is_dir() else container.folders.output / "data"
    for name, value in {**_data_options(container, named), "output-dir": str(output_dir)}.items():
        if name not in named:
            values[name] = value
    argv = (sys.executable, "-m", "hvdtrain", "train", *worker_options(values))
    run_folder = next(str(value) for name, value in values.items() if _normal(name) == "output-dir")
    return WorkerCommand(argv, folder, folder / run_folder)


def _normal(name: str) -> str:
    return name.replace("_", "-")


def _data_options(container: Container, named: set[str]) -> Mapping[str, HyperparameterValue]:
    by_file = [name for name, mode in container.channels.items() if mode != "Pipe" and name != PLAN_CHANNEL]
    for name in by_file:
        if not (container.folders.data / name).is_dir():
            raise UsageError(
                f"The channel {name} has no folder {container.folders.data / name}.",
                "inputdataconfig.json says that its data come as files.",
                "check the channel's S3 location: SageMaker makes no folder for one that holds nothing.",
            )
    values: dict[str, HyperparameterValue] = {}
    if len(by_file) == 1:
        values["data.dir"] = str(container.folders.data / by_file[0])
    elif by_file:  # each channel is a folder in it
        values["data.dir"] = str(container.folders.data)
    if "Pipe" in container.channels.values():
        values |= _pipe_options(container, named)
    return values


def _pipe_options(container: Container, named: set[str]) -> Mapping[str, HyperparameterValue]:
    plan = container.folders.data / PLAN_CHANNEL / "plan.json"
    if "data.pipe-plan" not in named and not plan.is_file():
        raise UsageError(
            f"Channels come through pipes, and there is no {plan}.",
            "Nothing says which worker reads which channel, and how many records come.",
            f"make it with `hvdtrain shard pipe-plan`, and give the folder with it as a channel {PLAN_CHANNEL} of mode "
            "File.",
        )
    return {"data.mode": "pipe", "data.pipe-dir": str(container.folders.data), "data.pipe-plan": str(plan)}


def _interpreter(program: str, folder: Path) -> tuple[str, ...]:
    path = folder / program
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"There is no {program} in {folder}.",
            f"{_PROGRAM} names it as what workers run.",
            "put it into the source folder, and name it by its path there.",
        )
    return ("/bin/sh", program) if program.endswith(".sh") else (sys.executable, program)


def source_folder(container: Container) -> Path:
    """Where workers start: the folder that `sagemaker_submit_directory` names, /opt/ml/code, or /opt/ml."""
    named = container.hyperparameters.get(_DIRECTORY)
    folders = [Path(named)] if isinstance(named, str) and named.startswith("/") else []
    folders.append(container.folders.code)
    return next((folder for folder in folders if folder.is_dir()), container.folders.base)


def fetch_source(container: Container) -> None:
    """Unpack the source archive from S3 into /opt/ml/code, if workers need it. Raises UsageError: there is no boto3, no
    right to read the archive, or it is damaged or unsafe; HvdtrainError: S3 does not answer."""
    uri = container.hyperparameters.get(_DIRECTORY)
    if not isinstance(uri, str) or not uri.startswith("s3://") or not _is_needed(container):
        return
    container.folders.code.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        _download(uri, archive.name)
        _unpack(Path(archive.name), container.folders.code, uri)


def _is_needed(container: Container) -> bool:
    """Not where the toolkit has unpacked it; nor for a task that comes with hvdtrain, without a config file: it then
    holds the toolkit's program and nothing else."""
    hyperparameters = container.hyperparameters
    program = hyperparameters.get("sagemaker_program", TASK_PROGRAM)
    if (container.folders.code / str(program)).is_file():
        return False
    return program != TASK_PROGRAM or ":" in str(hyperparameters.get("task", "")) or "config" in hyperparameters


def _download(uri: str, path: str) -> None:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(
            f"The job's source is {uri}, and boto3 is not installed.",
            "Nothing else here can read from S3.",
            "pip install 'hvdtrain[sagemaker]' into the image, or put the source into the image and name its folder in "
            f"{_DIRECTORY}.",
        ) from error
    parts = urlsplit(uri)
    with explained(f"Fetching {uri}"):
        config = Config(retries={"mode": "standard"}, connect_timeout=_SECONDS, read_timeout=_SECONDS)
        boto3.client("s3", config=config).download_file(parts.netloc, parts.path.lstrip("/"), path)


def _unpack(packed: Path, folder: Path, origin: str) -> None:
    """Unpack a .tar.gz into `folder`, which is there; `origin` is its name for messages.

    All of it is looked at before anything is written. Raises UsageError: it is damaged or too large, or a name leads
    out of the folder, or something is not a plain file.
    """
    try:
        _require_small(packed)
        with tarfile.open(packed, mode="r:gz") as archive:
            members = [member for member in archive if _is_plain(member)]
            if sum(member.size for member in members) > _MOST_BYTES:  # a sparse file's holes take no bytes
                raise ValueError(_TOO_LARGE)
            for member in members:
                _write(archive, member, folder / member.name)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(
            f"The source archive {origin} cannot be unpacked: {error}.",
            "Workers would have nothing to run.",
            "make it again: `Estimator.fit` does, or `tar -czhf sourcedir.tar.gz -C SOURCE .`, with -h for links.",
        ) from error


def _require_small(packed: Path) -> None:
    """Before tarfile sees it, which reads the header of a member at once, whatever its size."""
    expanded = 0
    with gzip.open(packed) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            expanded += len(chunk)
            if expanded > _MOST_BYTES:
                raise ValueError(_TOO_LARGE)


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is to be written: a file, or a folder, which is made for its files anyway."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise ValueError(f"{member.name[:80]!r} leads out of its folder")
    if not (member.isreg() or member.isdir()):
        raise ValueError(f"{member.name[:80]!r} is neither a file nor a folder, but a link or a device")
    return member.isreg()


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise ValueError(f"{member.name[:80]!r} has no content")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
