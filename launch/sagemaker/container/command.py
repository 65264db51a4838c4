"""From a container's hyperparameters and channels to what each worker runs, and where."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.container.artifacts import source_folder
from hvdtrain.launch.sagemaker.container.contract import Container
from hvdtrain.launch.sagemaker.hyperparameters import flags
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TASK_PROGRAM, HyperparameterValue

_PROGRAM = "sagemaker_program"


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What every worker runs.

    Attributes:
        argv: the command.
        folder: where it starts.
        run_folder: where hvdtrain leaves its results; None for a user's own script.
    """

    argv: tuple[str, ...]
    folder: Path
    run_folder: Path | None


def worker_command(container: Container) -> WorkerCommand:
    """`hvdtrain train` with the hyperparameters as its flags, or the script that `sagemaker_program` names.

    Flags that the user leaves open follow from the container: where the data are, how they come, and the run folder.
    That is /opt/ml/checkpoints where the job has a checkpoint location, and so goes on from there; else
    /opt/ml/output/data.

    Raises:
        UsageError: a channel's folder, the pipe plan or the script is not there.
    """
    own = container.hyperparameters
    folder = source_folder(container)
    program = own.get(_PROGRAM)
    if isinstance(program, str) and program != TASK_PROGRAM:
        return WorkerCommand((*_interpreter(program, folder), *flags(own)), folder, None)
    given = {_normal(name) for name in own}
    values = dict(own)
    for name, value in {**_data_flags(container, given), "output-dir": str(_run_folder(container))}.items():
        if name not in given:
            values[name] = value
    argv = (sys.executable, "-m", "hvdtrain", "train", *flags(values))
    run_folder = next(str(value) for name, value in values.items() if _normal(name) == "output-dir")
    return WorkerCommand(argv, folder, folder / run_folder)


def _normal(name: str) -> str:
    return name.replace("_", "-")


def _run_folder(container: Container) -> Path:
    folders = container.folders
    return folders.checkpoints if folders.checkpoints.is_dir() else folders.output / "data"


def _data_flags(container: Container, given: set[str]) -> Mapping[str, HyperparameterValue]:
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
        values |= _pipe_flags(container, given)
    return values


def _pipe_flags(container: Container, given: set[str]) -> Mapping[str, HyperparameterValue]:
    plan = container.folders.data / PLAN_CHANNEL / "plan.json"
    if "data.pipe-plan" not in given and not plan.is_file():
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
