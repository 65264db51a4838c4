"""What to train on SageMaker, and on what: the arguments of a job, named as in the `Estimator` of SageMaker's SDK.

The contract between the client, which renders a request from this, and the container, which carries it out:

- Hyperparameters reach the container as JSON-encoded strings (`hvdtrain.launch.sagemaker.hyperparameters`): the user's
  own, and `sagemaker_*`. Workers get the user's own as `--name value`.
- `sagemaker_program` is `spec.program`, a file of `sourcedir.tar.gz`, which `sagemaker_submit_directory` names.
  For a task it is `TASK_PROGRAM`, which the client puts into the archive, and `task` is one of the hyperparameters.
- A task's program is `hvdtrain.launch.sagemaker.train_entry.main()`: it adds the options that the user leaves open,
  for what the container alone knows: where data, FIFOs, plan, checkpoints and results are.
- Channels of input mode Pipe, and no others, have names that end in a number, for a FIFO has one reader and so each
  worker its own: `train-0`, `train-1`, … as `hvdtrain shard pipe-plan` names them. Where there is a plan, its
  `plan.json` is the only file of the channel `PLAN_CHANNEL`. In local mode a channel's value is a folder, a file, or
  `NAME.manifest` (SageMaker's ManifestFile, whose prefix is a folder).
"""

# Annotations stay text: `spec_checks` has a table of them.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import PurePath
from typing import Literal

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import require_choice, require_nic
from hvdtrain.launch.sagemaker import spec_checks

LOCAL = "local"  # the instance type that means this machine
TASK_PROGRAM = "hvdtrain_entry.py"  # what workers run where the job has a task instead of an entry point
PLAN_CHANNEL = "pipe-plan"  # the channel that brings `plan.json`, in files
CHECKPOINT_FOLDER = "/opt/ml/checkpoints"  # what SageMaker keeps equal with `checkpoint_s3_uri`
HyperparameterValue = str | int | float | bool
InputMode = Literal["Pipe", "File", "FastFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """One training job.

    Args:
        task: an hvdtrain task, by its name or as module:Class of a module in `source_dir`; this or `entry_point`.
        entry_point: a script, as its path in `source_dir`.
        source_dir: folder whose files are packed into `sourcedir.tar.gz`; None: only the entry point is packed.
        instance_count: machines.
        instance_type: such as ml.p4d.24xlarge; "local": this machine.
        processes_per_host: workers of each machine; one a GPU.
        input_mode: of all channels that do not say otherwise.
        hyperparameters: the workers' options by name, without the dashes.
        image: URI of the container's image.
        role: ARN of the role that SageMaker takes on.
        region: None: the image's, or what the environment says.
        volume_size_gb: of each machine's disk, in GB.
        max_run_s: seconds of training after which SageMaker ends the job.
        max_wait_s: seconds for waiting and training together; spot instances only.
        use_spot: run on spot instances, which may be taken away.
        max_retry_attempts: how often SageMaker starts a job again after a fault of its own; None: never.
        checkpoint_s3_uri: where checkpoints are kept, so that a job goes on from them.
        output_path: s3:// folder for the model, the output and the source archive.
        base_job_name: what the job's name begins with.
        environment: variables of the container, for values that are not secret: the job's description shows them.
        subnets, security_group_ids: of a VPC; both or neither.
        tags: of the job.
        metric_definitions: name → regular expression, for metrics that SageMaker takes from the log.
        custom_mpi_options: options for mpirun, as one string.
        network_interface_name: interface that workers meet on; None: the one that SageMaker names.
        container_entrypoint: replaces the image's own; empty: SageMaker runs `IMAGE train`.
        volume_kms_key, output_kms_key: keys that encrypt disks and results.
        encrypt_inter_container_traffic: between machines; slower.
        keep_alive_period_s: seconds that the machines are kept for the next job (warm pool); None: not at all.

    Raises:
        UsageError: anything that SageMaker would refuse, as far as it can be known here.
    """

    task: str | None = None
    entry_point: str | None = None
    source_dir: str | PathLike[str] | None = None
    instance_count: int = 1
    instance_type: str = LOCAL
    processes_per_host: int = 1
    input_mode: InputMode = "File"
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    image: str | None = None
    role: str | None = None
    region: str | None = None
    volume_size_gb: int = 30
    max_run_s: int = 24 * 3600
    max_wait_s: int | None = None
    use_spot: bool = False
    max_retry_attempts: int | None = None
    checkpoint_s3_uri: str | None = None
    output_path: str | None = None
    base_job_name: str = "hvdtrain"
    environment: Mapping[str, str] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    metric_definitions: Mapping[str, str] = field(default_factory=dict)
    custom_mpi_options: str = ""
    network_interface_name: str | None = None
    container_entrypoint: tuple[str, ...] = ()
    volume_kms_key: str | None = None
    output_kms_key: str | None = None
    encrypt_inter_container_traffic: bool = False
    keep_alive_period_s: int | None = None

    def __post_init__(self) -> None:
        spec_checks.require_types_and_counts(self)
        require_choice(f"The input mode is {self.input_mode!r}.", self.input_mode, spec_checks.INPUT_MODES)
        spec_checks.require_job_name(self.base_job_name, is_base=True)
        spec_checks.require_program(self.task, self.entry_point, self.source_dir is not None)
        spec_checks.require_hyperparameters(self.hyperparameters, self.task)
        spec_checks.require_metrics(self.metric_definitions)
        if self.network_interface_name is not None:
            require_nic(self.network_interface_name, "leave it out: SageMaker names the right one.")
        if not self.is_local:
            spec_checks.require_cloud_fields(self)
        elif "://" in (self.output_path or "") and not str(self.output_path).startswith("file://"):
            raise UsageError(
                f"The output_path is {str(self.output_path)[:200]!r}.",
                "A job on this machine writes to its disk.",
                "give a folder.",
            )

    @property
    def is_local(self) -> bool:
        return self.instance_type == LOCAL

    @property
    def size(self) -> int:
        return self.instance_count * self.processes_per_host

    @property
    def mpi_enabled(self) -> bool:
        """Whether workers are started by mpirun. A single one is not: it would need ssh and MPI for nothing."""
        return self.size > 1

    @property
    def program(self) -> str:
        """What workers run: a file of the source archive, by its path there."""
        if self.entry_point is None:
            return TASK_PROGRAM
        return self.entry_point if self.source_dir is not None else PurePath(self.entry_point).name

    @property
    def worker_hyperparameters(self) -> dict[str, HyperparameterValue]:
        """What workers get as options: the user's own, and the task."""
        return ({"task": self.task} if self.task is not None else {}) | dict(self.hyperparameters)
