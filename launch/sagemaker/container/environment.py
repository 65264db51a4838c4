"""The variables that describe a container to a user's own script, with the names that `sagemaker-training` gives them.

`sagemaker_training.environment.Environment.to_env_vars` has all of them; here are those that scripts use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from launch.sagemaker.container.contract import Container
from launch.sagemaker.spec_checks import RESERVED


def script_variables(container: Container) -> dict[str, str]:
    """SM_MODEL_DIR, SM_CHANNEL_TRAIN, SM_HP_BATCH_SIZE and so on."""
    folders = container.folders
    own = {name: value for name, value in container.hyperparameters.items() if not name.startswith(RESERVED)}
    named = {
        "hosts": list(container.hosts),
        "current_host": container.current_host,
        "network_interface_name": container.network_interface or "",
        "channels": sorted(container.channels),
        "hps": own,
        "input_dir": str(folders.base / "input"),
        "input_config_dir": str(folders.config),
        "model_dir": str(folders.model),
        "output_dir": str(folders.output),
        "output_data_dir": str(folders.output / "data"),
        **{f"channel_{name}": str(folders.data / name) for name in container.channels},
        **{f"hp_{name}": value for name, value in own.items()},
    }
    return {f"SM_{name.upper()}": _text(value) for name, value in named.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those by which mpirun tells a process its rank: hvdtrain tells it anew."""
    return {name: value for name, value in environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))}
