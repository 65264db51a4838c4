"""`hvdtrain launch sagemaker`."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from hvdtrain.cli.launch.train_options import require_trains
from hvdtrain.errors import UsageError
from hvdtrain.launch.launcher_api import Launcher, require_outside_job
from hvdtrain.launch.option_groups import DRY_RUN, number, option, repeated
from hvdtrain.launch.rendering import comment
from hvdtrain.launch.sagemaker import Estimator, PipePlanInput, TrainingInput
from hvdtrain.launch.sagemaker.channel import DEFAULT_CHANNEL, Channel, Input
from hvdtrain.launch.sagemaker.hyperparameters import checkable_options, hyperparameters_of
from hvdtrain.launch.sagemaker.request import as_text, new_job_name, notes
from hvdtrain.launch.sagemaker.request_checks import require_valid_request
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import INPUT_MODES

_PAIRS = {"environment": "--env", "tags": "--tag", "metric_definitions": "--metric"}
_EXAMPLES = {
    "--env": "--env NCCL_DEBUG=INFO",
    "--tag": "--tag team=vision",
    "--metric": "--metric 'loss=loss=([0-9.]+)'",
    "--channel": "--channel train=s3://bucket/folder/",
}
_ENV_HELP = "environment variable; no secrets: everybody who sees the job sees it"
_MAY_BE_EMPTY = ("--env", "--tag")
_OWN = {"channel", "pipe_plan", "shuffle_seed", "job_name", "profile", "no_wait", "no_logs", "dry_run", "debug"}


OPTIONS: Final = (
    option(
        "--instance-type",
        required=True,
        metavar="TYPE",
        help="instance type, e.g. ml.p4d.24xlarge; local: this machine",
    ),
    number("--instance-count", "N", "number of machines (default: 1)", default=1),
    number("--processes-per-host", "K", "workers per machine, one per GPU (default: 1)", default=1),
    number("--volume-size-gb", "GB", "disk size of each machine in GB (default: 30)", default=30),
    option("--role", metavar="ARN", help="role that SageMaker uses"),
    option("--image", metavar="URI", help="container image in ECR"),
    option("--region", help="AWS region (default: the image's, or AWS_REGION)"),
    option("--profile", help="profile of the AWS configuration"),
    repeated("--subnet", "ID", "for a VPC; may be repeated", dest="subnets"),
    repeated("--security-group", "ID", dest="security_group_ids"),
    option("--nic", dest="network_interface_name", metavar="NAME", help="network interface (default: SageMaker's)"),
    option("--mpi-options", default="", dest="custom_mpi_options", metavar="'-x A'", help="further options of mpirun"),
    option("--input-mode", choices=INPUT_MODES, default="File", help="how channels are delivered (default: File)"),
    repeated("--channel", "NAME=URI", "place of the data; may be repeated"),
    option("--pipe-plan", metavar="DIR", help="plan for training data, made by `hvdtrain shard pipe-plan --out DIR`"),
    number("--shuffle-seed", "SEED", "pipes: another order of the files in each epoch"),
    option("--output-path", metavar="s3://…", help="folder for model, output, source; local: a folder (default: runs)"),
    option("--checkpoint-s3-uri", metavar="s3://…", help="place of the checkpoints, from which a later job continues"),
    option("--entry-point", metavar="FILE", help="your own script instead of hvdtrain's training"),
    option("--source-dir", metavar="DIR", help="folder to upload: your task's module, config files, the entry point"),
    option("--name", dest="base_job_name", default="hvdtrain", help="beginning of the job's name (default: hvdtrain)"),
    option("--job-name", metavar="NAME", help="complete name of the job (default: --name and the time)"),
    number("--max-run-s", "S", "time limit of the job in seconds (default: 86400)", default=24 * 3600),
    option("--use-spot", action="store_true", help="spot instances; needs --max-wait-s"),
    number("--max-wait-s", "S", "seconds for waiting and training together"),
    number("--max-retry-attempts", "N", "retries after an error of SageMaker"),
    number("--keep-alive-period-s", "S", "keep the machines for the next job"),
    repeated("--env", "NAME=VALUE", _ENV_HELP, dest="environment"),
    repeated("--tag", "KEY=VALUE", dest="tags"),
    repeated("--metric", "NAME=REGEX", "metric that SageMaker reads from the log", dest="metric_definitions"),
    option("--no-wait", action="store_true", help="return when SageMaker has the job"),
    option("--no-logs", action="store_true", help="do not print the workers' logs"),
    DRY_RUN,
)
"""For machines, data and the job."""


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Run the job and wait for its end, or print the request. Raises UsageError: a job that cannot be, or boto3 is
    missing; HvdtrainError: the job failed, or AWS refused it."""
    estimator = Estimator(profile=options.profile, check_flags=require_trains, **_arguments(options, command))
    inputs = _inputs(options)
    if options.dry_run:
        return _print(estimator, inputs, options.job_name)
    require_outside_job()
    estimator.fit(inputs, wait=not options.no_wait, logs=not options.no_logs, job_name=options.job_name)
    if not options.no_wait:
        print(estimator.model_data)
    return 0


def _arguments(options: argparse.Namespace, command: tuple[str, ...]) -> dict[str, Any]:
    arguments = {name: value for name, value in vars(options).items() if name not in _OWN}
    arguments |= {name: dict(_pair(text, option) for text in arguments[name]) for name, option in _PAIRS.items()}
    arguments |= {name: tuple(arguments[name]) for name in ("subnets", "security_group_ids")}
    words = command[1:] if command[0] == "train" else command
    if not command[0].startswith("-") and command[0] != "train":
        raise UsageError(
            f"The command to launch is {command[0]!r}.", "SageMaker runs training jobs.", "write -- train ..."
        )
    hyperparameters = hyperparameters_of(words)
    if options.entry_point is None:
        # Refuse here what every worker would refuse after the machines have come. A config file may name the task.
        arguments["task"] = require_trains(checkable_options(hyperparameters, options.source_dir)).task
        hyperparameters.pop("task", None)
    return {**arguments, "hyperparameters": hyperparameters}


def _inputs(options: argparse.Namespace) -> dict[str, Input]:
    inputs: dict[str, Input] = {}
    if options.pipe_plan is not None:
        inputs[DEFAULT_CHANNEL] = PipePlanInput(options.pipe_plan, options.shuffle_seed)
    for name, uri in (_pair(text, "--channel") for text in options.channel):
        if name in inputs:
            raise UsageError(
                f"There are two channels {name}.",
                "The training data come from one place." if options.pipe_plan else "Each has one place.",
                "leave one out.",
            )
        inputs[name] = TrainingInput(uri, shuffle_seed=options.shuffle_seed if name == DEFAULT_CHANNEL else None)
    return inputs


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and (value or option in _MAY_BE_EMPTY)):
        shown = name if equals else text
        hint = f"write e.g. {_EXAMPLES[option]}."
        raise UsageError(f"{option} is given {shown[:80]!r}.", "It has a name, =, and a value.", hint)
    return name, value


def _print(estimator: Estimator, inputs: dict[str, Input], job_name: str | None) -> int:
    """The request on stdout, for `aws sagemaker create-training-job --cli-input-json`; comments on stderr."""
    spec = estimator.spec
    name = new_job_name(spec) if job_name is None else job_name
    if spec.is_local:
        estimator.require_ready(name)
        note = f"# hvdtrain launch sagemaker: {name} on this machine ({os.uname().nodename})"
        shown = _local_description(spec, estimator.channels(inputs, name))
    else:
        shown, channels = estimator.request(inputs, name), estimator.channels(inputs, name)
        title = f"hvdtrain launch sagemaker: {name}, {spec.instance_count} × {spec.instance_type}"
        note = comment(title, notes(spec, channels, name, require_valid_request(shown)))
    sys.stderr.write(note + "\n")
    sys.stdout.write(as_text(shown))
    return 0


def _local_description(spec: TrainingSpec, channels: Sequence[Channel]) -> dict[str, Any]:
    return {
        "InstanceCount": spec.instance_count,
        "ProcessesPerHost": spec.processes_per_host,
        "HyperParameters": spec.worker_hyperparameters,
        "Channels": {
            channel.name: {
                "mode": channel.source.input_mode,
                "place": str((channel.upload if channel.pending_plan is None else None) or channel.data_location),
            }
            for channel in channels
        },
    }


LAUNCHER: Final = Launcher("a training job of Amazon SageMaker", OPTIONS, start, checks_command=True)
