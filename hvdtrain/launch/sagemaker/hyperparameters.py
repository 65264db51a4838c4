"""Hyperparameters as SageMaker passes them: a map of strings, each of them JSON.

SageMaker's SDK encodes every value by `json.dumps` (sagemaker 2.x, `Framework._json_encode_hyperparameters`), and its
training toolkit decodes them and makes options of them (`sagemaker_training.mapping.to_cmd_args`): `--name str(value)`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.execute import run_program
from hvdtrain.launch.sagemaker.spec import HyperparameterValue, TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import RESERVED

OptionCheck = Callable[[Sequence[str]], object]  # raises UsageError for options that `hvdtrain train` would refuse
_CHECKER = "hvdtrain.cli.launch.train_options"
_CHECK_SECONDS = 120.0


def encode(values: Mapping[str, HyperparameterValue]) -> dict[str, str]:
    return {name: json.dumps(value, allow_nan=False) for name, value in values.items()}


def decode(encoded: Mapping[str, str]) -> dict[str, HyperparameterValue]:
    """What `encode` was given. As in SageMaker's toolkit, what is not JSON, and lists, mappings, null, stay text."""
    decoded: dict[str, HyperparameterValue] = dict(encoded)
    for name, text in encoded.items():
        with suppress(ValueError):
            value = json.loads(text)
            if isinstance(value, str | int | float | bool):
                decoded[name] = value
    return decoded


def worker_options(values: Mapping[str, HyperparameterValue]) -> list[str]:
    """The options that workers get, in the toolkit's spelling: `--amp True`; without SageMaker's own names."""
    users = {name: value for name, value in sorted(values.items()) if not name.startswith(RESERVED)}
    return [
        word for name, value in users.items() for word in (f"--{name}" if len(name) > 1 else f"-{name}", str(value))
    ]


def reserved(spec: TrainingSpec, job_name: str, submit_directory: str, region: str) -> dict[str, HyperparameterValue]:
    """SageMaker's own hyperparameters of a job, before they are encoded. `submit_directory` is where the source archive
    is: an s3:// URI, or a path in the container."""
    names: dict[str, HyperparameterValue] = {
        "sagemaker_program": spec.program,
        "sagemaker_submit_directory": submit_directory,
        "sagemaker_job_name": job_name,
        "sagemaker_region": region,
    }
    if not spec.mpi_enabled:
        return names
    return names | {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": spec.processes_per_host,
        "sagemaker_mpi_custom_mpi_options": mpi_options(spec),
    }


def mpi_options(spec: TrainingSpec) -> str:
    """Options for mpirun: the user's own, and the names of variables that other hosts would not get otherwise."""
    names = dict.fromkeys([*spec.environment, *interface_variables(spec)])
    return " ".join(filter(None, [*(f"-x {name}" for name in names), spec.custom_mpi_options]))


def interface_variables(spec: TrainingSpec) -> dict[str, str]:
    """Variables that name the network interface, where the job names one."""
    nic = spec.network_interface_name
    return {} if nic is None else {"HOROVOD_GLOO_IFACE": nic, "NCCL_SOCKET_IFNAME": f"={nic}"}


def hyperparameters_of(words: Sequence[str]) -> dict[str, HyperparameterValue]:
    """`--epochs 3 --debug --data.dir=x` as {"epochs": 3, "debug": True, "data.dir": "x"}.

    Values become numbers where that leaves their text as it is, so that workers get the same words again; an option
    without a value becomes True, and workers get `--debug True`. Raises UsageError: a word that belongs to no option,
    or an option that is given twice.
    """
    hyperparameters: dict[str, HyperparameterValue] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option == "--":
            raise UsageError(
                f"The command has the word {word[:80]!r}.",
                "SageMaker carries options with one value each, as hyperparameters.",
                "write --name value.",
            )
        name = option[2:]
        if name.replace("_", "-") in {other.replace("_", "-") for other in hyperparameters}:
            raise UsageError(f"{option} is given twice.", "A hyperparameter has one value.", "leave one out.")
        if equals:
            hyperparameters[name] = _typed(value)
        elif left and not left[0].startswith("--"):
            hyperparameters[name] = _typed(left.pop(0))
        else:
            hyperparameters[name] = True
    return hyperparameters


def _typed(text: str) -> HyperparameterValue:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text and text not in ("nan", "inf", "-inf"):
                return kind(text)
    return text


def checkable_options(
    hyperparameters: Mapping[str, HyperparameterValue], source_dir: str | PathLike[str] | None
) -> list[str]:
    """The options of a task's workers, with the config file where it is now instead of where it will be there."""
    options = dict(hyperparameters)
    if "config" in options:
        path = str(options["config"])
        here = Path(source_dir or ".").expanduser() / path
        if source_dir is None or Path(path).is_absolute() or not os.path.isfile(here):
            raise UsageError(
                f"--config is {path!r}.",
                "In the container it is a file of the source folder.",
                "put it into a folder, and give --source-dir FOLDER and --config its path there.",
            )
        options["config"] = str(here)
    return worker_options(options)


def ask_hvdtrain(words: Sequence[str]) -> None:
    """The option check in a process of its own, because `launch` knows none of hvdtrain's options."""
    command = [sys.executable, "-m", _CHECKER, *words]
    try:
        done = run_program(command, _CHECK_SECONDS)
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:  # too long, or no text that a process takes
        raise HvdtrainError(
            f"The hyperparameters could not be checked: {error}.", "Workers would refuse them.", "make them shorter."
        ) from error
    if done.returncode != 0:
        message, _, hint = done.stderr.strip().removeprefix("hvdtrain: ").partition("\nHINT: ")
        kind = UsageError if done.returncode == UsageError.exit_code else HvdtrainError
        conflict = message or f"It ended with exit code {done.returncode}."
        hint = hint or "`hvdtrain train --help-all` tells its options."
        raise kind("`hvdtrain train` refuses the hyperparameters.", conflict, hint)
