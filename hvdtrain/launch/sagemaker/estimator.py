"""Train on SageMaker, or by the same contract on this machine: `Estimator(...).fit(inputs)`."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError, UsageError, did_you_mean
from hvdtrain.launch.sagemaker.aws import MAX_PENDING_SECONDS, POLL_SECONDS, Service, TrainingJob
from hvdtrain.launch.sagemaker.channel import Channel, Inputs, local_path
from hvdtrain.launch.sagemaker.channels import make_channels, make_plans
from hvdtrain.launch.sagemaker.hyperparameters import OptionCheck, ask_hvdtrain, checkable_options
from hvdtrain.launch.sagemaker.request import (
    ARCHIVE,
    archive_uri,
    job_folder,
    new_job_name,
    region_of,
    render,
    secret_names,
)
from hvdtrain.launch.sagemaker.request_checks import require_valid_request
from hvdtrain.launch.sagemaker.source_archive import source_files, write_source_archive
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import require_job_name

ALIASES = {
    "image_uri": "image",
    "volume_size": "volume_size_gb",
    "max_run": "max_run_s",
    "max_wait": "max_wait_s",
    "use_spot_instances": "use_spot",
    "keep_alive_period_in_seconds": "keep_alive_period_s",
}
"""What SageMaker's SDK calls arguments that have their unit in the name here."""


@dataclass(frozen=True)
class LocalJob:
    """A job that ran on this machine; its folder has `model/` and `output/`."""

    name: str
    folder: Path


class Estimator:
    """A training job that can be started again and again.

    Args:
        arguments: of `TrainingSpec`, also by the names that SageMaker's SDK has for them (see `ALIASES`).
        profile: of the AWS configuration; None: what the environment says.
        poll_s: seconds between two looks at a job.
        check_flags: refuses options that a task's workers would refuse; by default a process that asks hvdtrain.

    Attributes:
        spec: the job.
        latest_training_job: the last one that `fit` started; None before.

    Raises:
        UsageError: an unknown argument, or a job that cannot be.
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        poll_s: float = POLL_SECONDS,
        check_flags: OptionCheck = ask_hvdtrain,
        **arguments: Any,
    ) -> None:
        self.spec = _spec(arguments)
        self.latest_training_job: TrainingJob | LocalJob | None = None
        self._profile, self._poll_s, self._check_options = profile, poll_s, check_flags

    def request(self, inputs: Inputs = None, job_name: str | None = None) -> dict[str, Any]:
        """The `CreateTrainingJob` request that `fit` would send; nothing is uploaded, and AWS is not asked.

        Raises:
            UsageError: a job, channel or request that SageMaker would refuse.
        """
        name = self._name(job_name)
        self.require_ready(name)
        return self._render(self.channels(inputs, name), name)

    def require_ready(self, job_name: str) -> None:
        """Raise UsageError for a job name, source folder, entry point, task or option that cannot be."""
        require_job_name(job_name)
        source_files(self.spec)
        if self.spec.task is not None:
            self._check_options(checkable_options(self.spec.worker_hyperparameters, self.spec.source_dir))
        if self.spec.is_local:
            _require_writable(self._local_folder(job_name))

    def channels(self, inputs: Inputs, job_name: str, plan_folder: Path = Path("pipe-plans")) -> tuple[Channel, ...]:
        """The channels that `inputs` (see `fit`) describe; plans that are not there yet go to `plan_folder`."""
        require_job_name(job_name)
        prefix = "" if self.spec.is_local else f"{job_folder(self.spec, job_name)}/input"
        return make_channels(self.spec, inputs, prefix, plan_folder)

    def fit(self, inputs: Inputs = None, wait: bool = True, logs: bool = True, job_name: str | None = None) -> None:
        """Train.

        Args:
            inputs: where the data of each channel are: name → URI (a path in local mode), `TrainingInput` or
                `PipePlanInput`; a single one is the channel "train". None: the task has its own.
            wait: return when the job has ended; else when SageMaker has accepted it.
            logs: print the workers' logs while waiting.
            job_name: the whole name; None: `base_job_name` and the time.

        Raises:
            UsageError: a job that cannot be; nothing was started.
            HvdtrainError: the job failed, with SageMaker's reason, or could not be started.
        """
        name = self._name(job_name)
        named_by_user = job_name is not None
        self.require_ready(name)  # refused before anything is made
        with tempfile.TemporaryDirectory(prefix="hvdtrain-sagemaker-") as folder:
            channels = self.channels(inputs, name, Path(folder) / "pipe-plans")
            if self.spec.is_local:
                self._run_here(channels, name, wait)
            else:
                job = self._submit(channels, name, Path(folder), named_by_user)
                if wait:
                    job.wait((self.spec.max_wait_s or self.spec.max_run_s) + MAX_PENDING_SECONDS, logs)

    @property
    def model_data(self) -> str:
        """Where the model of the latest job is: s3:// URI of `model.tar.gz`, or the folder of a local job.

        Raises:
            HvdtrainError: no job was started, or it has no model yet.
        """
        job = self.latest_training_job
        if job is None:
            raise HvdtrainError("There is no model.", "No training job has been started.", "call fit first.")
        if isinstance(job, LocalJob):
            return str(job.folder / "model")
        answer = job.describe()
        artifacts = answer.get("ModelArtifacts", {})
        if "S3ModelArtifacts" not in artifacts:
            status = answer["TrainingJobStatus"]
            raise HvdtrainError(f"The training job {job.name} has no model.", f"It is {status}.", "wait for its end.")
        return str(artifacts["S3ModelArtifacts"])

    def _name(self, job_name: str | None) -> str:
        return new_job_name(self.spec) if job_name is None else job_name

    def _local_folder(self, name: str) -> Path:
        output_path = self.spec.output_path
        return (local_path(output_path) if output_path is not None else Path("runs").absolute()) / name

    def _render(self, channels: Sequence[Channel], name: str) -> dict[str, Any]:
        if self.spec.is_local:
            raise UsageError(
                "The job runs on this machine.", "There is no request to AWS.", "choose an ml.* instance type."
            )
        request = render(self.spec, channels, name, region_of(self.spec, os.environ))
        require_valid_request(request)
        return request

    def _submit(self, channels: Sequence[Channel], name: str, folder: Path, named_by_user: bool) -> TrainingJob:
        request = self._render(channels, name)
        secret = secret_names(self.spec.environment)
        if secret:
            sys.stderr.write(f"{name}: whoever may see the job sees the values of {', '.join(secret)}\n")
        service = Service(region_of(self.spec, os.environ), self._profile, self.spec.output_kms_key)
        if named_by_user:
            service.require_new(name)
        make_plans(self.spec, channels)
        archive = folder / ARCHIVE
        write_source_archive(self.spec, archive)
        service.upload(archive, archive_uri(self.spec, name))
        for channel in channels:
            if channel.upload is not None:
                service.upload(channel.upload, channel.source.s3_data)
        service.create(request)
        self.latest_training_job = job = TrainingJob(name, service, self._poll_s)
        sys.stderr.write(f"{name}: started on SageMaker; it goes on if you interrupt this\n")
        return job

    def _run_here(self, channels: Sequence[Channel], name: str, wait: bool) -> None:
        from hvdtrain.launch.sagemaker.local.mode import run_local

        if not wait:
            raise UsageError(
                "A job on this machine is not to be waited for.",
                "It ends with this process.",
                "leave wait=False (--no-wait) out.",
            )
        make_plans(self.spec, channels)
        folder = self._local_folder(name)
        self.latest_training_job = LocalJob(name, folder)
        self.latest_training_job = LocalJob(name, run_local(self.spec, channels, folder))


def _spec(arguments: dict[str, Any]) -> TrainingSpec:
    known = {field.name for field in fields(TrainingSpec)}
    named: dict[str, Any] = {}
    for argument, value in arguments.items():
        name = ALIASES.get(argument, argument)
        if name not in known:
            raise UsageError(
                f"Estimator has no argument {argument!r}.",
                "A job without it would not be the job you asked for.",
                did_you_mean(argument, known | ALIASES.keys()),
            )
        if name in named:
            raise UsageError(
                f"Estimator was given {name} twice.", f"It is also called {argument}.", "give one of the two."
            )
        named[name] = value
    return TrainingSpec(**named)


def _require_writable(folder: Path) -> None:
    try:
        for path in (folder, *folder.parents):
            with suppress(FileNotFoundError):
                path.lstat()
                break
        tempfile.TemporaryDirectory(prefix=".hvdtrain-", dir=path).cleanup()
    except OSError as error:
        raise UsageError(
            f"The output folder {folder} cannot be written to: {error.strerror}.",
            "The job's model and output go there.",
            "choose another output_path (--output-path).",
        ) from error
