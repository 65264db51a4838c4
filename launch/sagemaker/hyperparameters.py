"""Hyperparameters as SageMaker carries them: a map of strings, each of them JSON.

SageMaker's SDK encodes every value by `json.dumps` (sagemaker 2.x, `Framework._json_encode_hyperparameters`), and its
training toolkit decodes them and turns them into flags (`sagemaker_training.mapping.to_cmd_args`): `--name str(value)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hvdtrain.launch.sagemaker.spec import HyperparameterValue, TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import RESERVED


def encode(values: Mapping[str, HyperparameterValue]) -> dict[str, str]:
    """Each value as JSON text."""
    return {name: json.dumps(value, allow_nan=False) for name, value in values.items()}


def decode(encoded: Mapping[str, str]) -> dict[str, HyperparameterValue]:
    """What `encode` was given. Text that is no JSON stands for itself, as in SageMaker's toolkit.

    Values that are no text, number or truth value (lists, mappings, null) stay JSON text.
    """
    return {name: _decode(text) for name, text in encoded.items()}


def _decode(text: str) -> HyperparameterValue:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def flags(values: Mapping[str, HyperparameterValue]) -> list[str]:
    """The flags that workers get, in the toolkit's spelling: `--amp True`; SageMaker's own names are left out."""
    own = {name: value for name, value in sorted(values.items()) if not name.startswith(RESERVED)}
    return [word for name, value in own.items() for word in (f"--{name}" if len(name) > 1 else f"-{name}", str(value))]


def reserved(spec: TrainingSpec, job_name: str, submit_directory: str, region: str) -> dict[str, HyperparameterValue]:
    """SageMaker's own hyperparameters of a job, before they are encoded.

    Args:
        spec: the job.
        job_name: its whole name.
        submit_directory: where the source archive is: an s3:// URI, or a path in the container.
        region: AWS region.
    """
    own: dict[str, HyperparameterValue] = {
        "sagemaker_program": spec.program,
        "sagemaker_submit_directory": submit_directory,
        "sagemaker_job_name": job_name,
        "sagemaker_region": region,
    }
    if not spec.mpi_enabled:
        return own
    return own | {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": spec.processes_per_host,
        "sagemaker_mpi_custom_mpi_options": mpi_options(spec),
    }


def mpi_options(spec: TrainingSpec) -> str:
    """Flags for mpirun: the user's own, and the names of variables that other hosts would not get otherwise."""
    names = dict.fromkeys([*spec.environment, *interface_variables(spec)])
    return " ".join(
        [*(f"-x {name}" for name in names), *([spec.custom_mpi_options] if spec.custom_mpi_options else [])]
    )


def interface_variables(spec: TrainingSpec) -> dict[str, str]:
    """Variables that name the network interface, where the job names one."""
    nic = spec.network_interface_name
    return {} if nic is None else {"HOROVOD_GLOO_IFACE": nic, "NCCL_SOCKET_IFNAME": f"={nic}"}
