"""The variables of a container's workers: which rank each is, how ranks find each other, and what scripts read.

Scripts get SM_* with the names of `sagemaker_training.environment.Environment.to_env_vars` (version 4.8).
"""

import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.container.contract import JOB_VARIABLE, Container
from hvdtrain.launch.sagemaker.hyperparameters import worker_options
from hvdtrain.launch.sagemaker.spec_checks import RESERVED
from hvdtrain.topology.readers.mpi import OPEN_MPI
from hvdtrain.topology.topology import RankAssignment

PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
"""The toolkit's name for it, used where there is no toolkit too."""

_FIRST_PORT, _PORTS = 20_000, 10_000  # below Linux's range for outgoing connections, 32768 and up
_LONGEST_BYTES = 128 * 1024 - 1  # Linux starts no program with a longer variable: MAX_ARG_STRLEN
_GPU = re.compile(r"nvidia\d+")
_TOOLKITS_OWN = ("program", "submit_directory", "job_name", "region", "container_log_level")
_INFO = 20  # logging.INFO, the toolkit's default


def assigned_ranks(container: Container, environ: Mapping[str, str]) -> list[RankAssignment]:
    """The workers that this process is to start: one under the toolkit's mpirun, else all of this host. Raises
    UsageError: mpirun's variables lack one, or the number of workers is none."""
    number_of_host, hosts = container.hosts.index(container.current_host), len(container.hosts)
    name = socket.gethostname()
    if OPEN_MPI.applies(environ):
        needed = [names[0] for names in OPEN_MPI.table.values()]
        if missing := [name for name in needed if name not in environ]:
            raise UsageError(
                f"mpirun's variables lack {', '.join(missing)}.",
                f"A rank of the toolkit's mpirun has all of {', '.join(needed)}.",
                "use Open MPI 4, as sagemaker-training asks for.",
            )
        mpi = OPEN_MPI.read(environ)
        return [RankAssignment(mpi.rank, mpi.size, mpi.local_rank, mpi.local_size, number_of_host, hosts, name)]
    count = container.hyperparameters.get(PROCESSES_PER_HOST, 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise UsageError(
            f"The hyperparameter {PROCESSES_PER_HOST} is {count!r}.",
            "It is the number of workers of each host.",
            "give a whole number from 1 to 1024; usual is one for each GPU.",
        )
    first, size = number_of_host * count, hosts * count
    return [RankAssignment(first + n, size, n, count, number_of_host, hosts, name) for n in range(count)]


def rendezvous_variables(container: Container, place: RankAssignment, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker needs to find those of other hosts by hvdtrain's own rendezvous: no ssh, no MPI. They meet at the
    first host, on a port that follows from the job's name, since all of them know that."""
    digest = hashlib.sha256(environ.get(JOB_VARIABLE, "").encode()).digest()
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.cross_rank),
        "GROUP_WORLD_SIZE": str(place.cross_size),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or container.hosts[0],
        "MASTER_PORT": environ.get("MASTER_PORT") or str(_FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS),
    }


def script_variables(container: Container) -> dict[str, str]:
    """SM_MODEL_DIR, SM_CHANNEL_TRAIN, SM_HP_BATCH_SIZE and so on. One that is too long for Linux is omitted."""
    folders = container.folders
    users = {name: value for name, value in container.hyperparameters.items() if not name.startswith(RESERVED)}
    program = str(container.hyperparameters.get(f"{RESERVED}program", ""))
    paths = {name: str(folders.data / name) for name in container.channels}
    framework = {
        name: value
        for name, value in container.hyperparameters.items()
        if name.startswith(RESERVED) and name.removeprefix(RESERVED) not in _TOOLKITS_OWN
    }
    both = {
        **_machine(container),
        "input_data_config": container.inputs,
        "input_dir": str(folders.base / "input"),
        "input_config_dir": str(folders.config),
        "model_dir": str(folders.model),
        "output_dir": str(folders.output),
        "output_data_dir": str(folders.output / "data"),
        "output_intermediate_dir": str(folders.output / "intermediate"),
        "user_entry_point": program,
        "module_name": program.removesuffix(".py"),
        "module_dir": str(container.hyperparameters.get(f"{RESERVED}submit_directory", folders.code)),
        "log_level": container.hyperparameters.get(f"{RESERVED}container_log_level", _INFO),
    }
    training_env = {
        **both,
        "hyperparameters": users,
        "channel_input_dirs": paths,
        "additional_framework_parameters": framework,
        "job_name": str(container.hyperparameters.get(f"{RESERVED}job_name", "")),
        "is_master": container.current_host == container.hosts[0],
        "master_hostname": container.hosts[0],
    }
    named = {
        **both,
        "channels": sorted(container.channels),
        "hps": users,
        "framework_params": framework,
        "training_env": training_env,
        "user_args": worker_options(users),
        **{f"channel_{name}": path for name, path in paths.items()},
        **{f"hp_{name}": value for name, value in users.items()},
    }
    texts = {f"SM_{name.upper()}": _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if len(f"{name}={text}".encode()) < _LONGEST_BYTES}


def _machine(container: Container) -> dict[str, Any]:
    resources = container.resources
    group = resources.get("current_group_name", "homogeneousCluster")
    listed = resources.get("instance_groups")
    groups = {
        each["instance_group_name"]: each
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and isinstance(each.get("instance_group_name"), str)
    }
    return {
        "hosts": list(container.hosts),
        "current_host": container.current_host,
        "current_instance_type": resources.get("current_instance_type", "local"),
        "current_instance_group": group,
        "current_instance_group_hosts": groups.get(group, {}).get("hosts", []),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "network_interface_name": container.network_interface or "eth0",
        "resource_config": resources,
        "num_cpus": len(os.sched_getaffinity(0)),
        "num_gpus": sum(bool(_GPU.fullmatch(name)) for name in os.listdir("/dev")),
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
