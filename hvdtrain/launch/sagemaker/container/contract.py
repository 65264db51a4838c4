"""What SageMaker gives a container: folders, hyperparameters, hosts and channels, read once and checked.

The three files of /opt/ml/input/config are described in Amazon SageMaker AI's Developer Guide, "How Amazon SageMaker
Provides Training Information". Where one is missing, its content is taken from the variable that
`sagemaker-training` sets (`sagemaker_training.environment.Environment.to_env_vars`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import require_host_name
from hvdtrain.launch.job_spec import require_choice
from hvdtrain.launch.sagemaker.channel import CHANNEL_NAME
from hvdtrain.launch.sagemaker.hyperparameters import decode
from hvdtrain.launch.sagemaker.spec import HyperparameterValue
from hvdtrain.launch.sagemaker.spec_checks import INPUT_MODES

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"  # names another folder than /opt/ml, for `sagemaker-training` too
JOB_VARIABLE = "TRAINING_JOB_NAME"  # SageMaker sets it to the job's name, in all containers of the job
_DEFAULT_BASE = "/opt/ml"
_WHERE = "it is written by SageMaker; to run the same on one machine, use Estimator(instance_type='local')."


class Folders:
    """The folders of a container, all below `base`.

    `model` becomes model.tar.gz; the file `failure` in `output` tells why a job failed; `checkpoints` exists if the job
    has a checkpoint location, with which SageMaker keeps it equal, also from one spot instance to the next.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.config, self.data = base / "input" / "config", base / "input" / "data"
        self.code, self.model, self.output = base / "code", base / "model", base / "output"
        self.checkpoints = base / "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a training job."""

    folders: Folders
    hyperparameters: Mapping[str, HyperparameterValue]  # decoded; the user's own and `sagemaker_*`
    hosts: tuple[str, ...]  # names of all containers, in the order of ranks
    current_host: str
    # name → input mode: "File", "FastFile" (a folder as well, whose files are fetched while they are read) or "Pipe",
    # whose data come through FIFOs, `NAME_0` for the first epoch
    channels: Mapping[str, str]
    network_interface: str | None = None  # on which the containers see each other, if SageMaker says so
    resources: Mapping[str, Any] = field(default_factory=dict)  # all that resourceconfig.json holds
    inputs: Mapping[str, Any] = field(default_factory=dict)  # all that inputdataconfig.json holds


def folders_of(environ: Mapping[str, str]) -> Folders:
    return Folders(Path(environ.get(BASE_VARIABLE) or _DEFAULT_BASE))


def read_container(environ: Mapping[str, str]) -> Container:
    """The container whose variables are `environ`; UsageError: something is missing, or not as SageMaker writes it."""
    folders = folders_of(environ)
    resources = _read(folders.config / "resourceconfig.json", environ.get("SM_RESOURCE_CONFIG"))
    if resources is None:
        raise UsageError(
            f"There is no {folders.config / 'resourceconfig.json'}, and no SM_RESOURCE_CONFIG.",
            "Nothing says which hosts take part in the training job.",
            _WHERE,
        )
    hosts, current_host = _hosts(resources)
    inputs = _read(folders.config / "inputdataconfig.json", environ.get("SM_INPUT_DATA_CONFIG"))
    nic = resources.get("network_interface_name")
    return Container(
        folders=folders,
        hyperparameters=_hyperparameters(folders, environ),
        hosts=hosts,
        current_host=current_host,
        channels={name: _input_mode(name, described) for name, described in (inputs or {}).items()},
        network_interface=nic if isinstance(nic, str) and nic else None,
        resources=resources,
        inputs=inputs or {},
    )


def _hyperparameters(folders: Folders, environ: Mapping[str, str]) -> dict[str, HyperparameterValue]:
    path = folders.config / "hyperparameters.json"
    written = _read(path, None)
    if written is None:
        users, of_sagemaker = (_read(path, environ.get(name)) or {} for name in ("SM_HPS", "SM_FRAMEWORK_PARAMS"))
        both = {**of_sagemaker, **users}.items()
        written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in both}
    for name, value in written.items():
        if not isinstance(value, str):
            raise UsageError(
                f"The hyperparameter {name!r} is {json.dumps(value)} in {path}.",
                "SageMaker carries hyperparameters as strings, each of them JSON.",
                f"write it as {json.dumps(json.dumps(value))}, which the Estimator does for you.",
            )
    return decode(written)


def _hosts(resources: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    hosts, current = resources.get("hosts"), resources.get("current_host")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise _unlike_sagemaker(f"resourceconfig.json has the hosts {hosts!r}", "It must be a list of host names")
    for host in hosts:
        require_host_name(host, "resourceconfig.json: ")
    if len(set(hosts)) < len(hosts) or not isinstance(current, str) or current not in hosts:
        raise _unlike_sagemaker(
            f"resourceconfig.json has the current host {current!r} and the hosts {', '.join(hosts)}",
            "The current host must be one of them, and none may be there twice",
        )
    return tuple(hosts), current


def _input_mode(name: str, described: Any) -> str:
    if not CHANNEL_NAME.fullmatch(name) or set(name) == {"."}:
        raise UsageError(
            f"inputdataconfig.json has a channel {name[:80]!r}.",
            "Channels are named by letters, digits, `.`, `-` and `_`, since each becomes a folder.",
            "choose another name.",
        )
    mode = described.get("TrainingInputMode") if isinstance(described, dict) else None
    fact = f"inputdataconfig.json gives the channel {name} the TrainingInputMode {mode!r}."
    require_choice(fact, mode, INPUT_MODES, "It says whether the data come as files or through FIFOs.")
    return str(mode)


def _read(path: Path, otherwise: str | None) -> dict[str, Any] | None:
    """The mapping that `path` holds, or, where there is no such file, the text `otherwise`."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        if otherwise is None:
            return None
        text = otherwise
    except (OSError, UnicodeDecodeError) as error:
        raise _unlike_sagemaker(f"{path} cannot be read: {error}", "It describes the training job") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _unlike_sagemaker(f"{path} is not JSON: {error}", "It describes the training job") from error
    if not isinstance(content, dict):
        raise _unlike_sagemaker(f"{path} holds no mapping", "It describes the training job by names and values")
    return content


def _unlike_sagemaker(fact: str, conflict: str) -> UsageError:
    return UsageError(f"{fact}.", f"{conflict}.", _WHERE)
