"""The variables that describe a container to a user's own script, with the names that `sagemaker-training` gives them.

`sagemaker_training.environment.Environment.to_env_vars` (version 4.8) says which there are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from hvdtrain.launch.sagemaker.container.contract import Container
from hvdtrain.launch.sagemaker.hyperparameters import flags
from hvdtrain.launch.sagemaker.spec_checks import RESERVED

_LONGEST_BYTES = 128 * 1024 - 1  # Linux starts no program with a longer variable: MAX_ARG_STRLEN
_GPU = re.compile(r"nvidia\d+")
_TOOLKITS_OWN = ("program", "submit_directory", "job_name", "region", "container_log_level")
_INFO = 20  # logging.INFO, the toolkit's default


def script_variables(container: Container) -> dict[str, str]:
    """SM_MODEL_DIR, SM_CHANNEL_TRAIN, SM_HP_BATCH_SIZE and so on. One too long for Linux is left out."""
    folders = container.folders
    own = {name: value for name, value in container.hyperparameters.items() if not name.startswith(RESERVED)}
    program = str(container.hyperparameters.get(f"{RESERVED}program", ""))
    paths = {name: str(folders.data / name) for name in container.channels}
    named = {
        **_machine(container),
        "channels": sorted(container.channels),
        "hps": own,
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
        "framework_params": _framework_parameters(container),
        "log_level": _log_level(container),
    }
    all_of_it = {
        **{name: value for name, value in named.items() if name not in ("hps", "channels", "framework_params")},
        "hyperparameters": own,
        "channel_input_dirs": paths,
        "additional_framework_parameters": named["framework_params"],
        "job_name": str(container.hyperparameters.get(f"{RESERVED}job_name", "")),
        "is_master": container.host_index == 0,
        "master_hostname": container.hosts[0],
    }
    named |= {"training_env": all_of_it, "user_args": flags(own)}
    named |= {f"channel_{name}": path for name, path in paths.items()}
    named |= {f"hp_{name}": value for name, value in own.items()}
    texts = {f"SM_{name.upper()}": _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if len(f"{name}={text}".encode()) < _LONGEST_BYTES}


def _machine(container: Container) -> dict[str, Any]:
    """What SageMaker says of the machines, and what this one has."""
    resources = container.resources
    group = resources.get("current_group_name", "homogeneousCluster")
    groups = {each["instance_group_name"]: each for each in _groups(resources)}
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


def _groups(resources: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = resources.get("instance_groups")
    listed = groups if isinstance(groups, list) else []
    return [each for each in listed if isinstance(each, dict) and isinstance(each.get("instance_group_name"), str)]


def _framework_parameters(container: Container) -> dict[str, Any]:
    toolkits = {RESERVED + name for name in _TOOLKITS_OWN}
    return {
        name: value
        for name, value in container.hyperparameters.items()
        if name.startswith(RESERVED) and name not in toolkits
    }


def _log_level(container: Container) -> object:
    return container.hyperparameters.get(f"{RESERVED}container_log_level", _INFO)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
