"""Jobs of Kubernetes: an MPIJob of the MPI Operator, API kubeflow.org/v2beta1, or a TrainJob (`train_job.py`).

Source: github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and examples/v2beta1.
"""

import math
import re
from argparse import Namespace
from dataclasses import replace
from typing import Any, Final

import yaml

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.mpirun import DAEMONS, mpirun_arguments
from hvdtrain.launch.option_groups import FLAVORS
from hvdtrain.launch.pods import (
    KINDS,
    KubernetesOptions,
    limits,
    metadata,
    pod_notes,
    require_label,
    user,
    variables,
    verbatim,
    volumes_and_mounts,
)
from hvdtrain.launch.rendering import ELASTIC, LaunchPlan, Note, comment, require_supported, shared_notes
from hvdtrain.launch.supervisor.restarts import option_value
from hvdtrain.launch.train_job import notes as train_job_notes
from hvdtrain.launch.train_job import require_train_job, train_job

IMPLEMENTATIONS = {"openmpi4": "OpenMPI", "openmpi5": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
HOSTFILE = "/etc/mpi/hostfile"
HOME = "/home/hvdtrain"  # home of the image's user, where sshd's settings and the operator's keys are
_UNSUPPORTED = (*ELASTIC, "hosts", "ssh_port", "start_timeout", "allow_root")


def render(job: JobSpec, options: KubernetesOptions | None = None, program: str = "kubectl") -> LaunchPlan:
    """The MPIJob or TrainJob of a job with an image, and the kubectl that hands it over. Raises UsageError: the job
    cannot be one."""
    options = options or KubernetesOptions()
    _require_fit(job, options)
    file = f"{job.name}.yaml"
    job = replace(job, binding="none")  # a pod's share of the cores is not a fixed set of them
    return LaunchPlan(
        launcher="kubectl",
        argv=(program, "apply", "-f", file),
        files={file: _text(job, options)},
        notes=(("file", f"{file}, which stays for you to edit and apply again"),),
    )


def _require_fit(job: JobSpec, options: KubernetesOptions) -> None:
    require_supported(job, "kubernetes", _UNSUPPORTED)
    require_label("--name", job.name)
    if options.kind == "TrainJob":
        require_train_job(job)
    if job.image is None:
        raise UsageError("The job has no image.", "Pods are made from one.", "name it with --image.")
    if job.binding == "core":
        raise UsageError(
            "Workers are to be bound to cores.",
            "A pod has a share of its node's cores, not fixed ones.",
            "leave --binding out; --cores-per-host sets the number of threads and the pods' share.",
        )
    if job.max_restarts and (options.claim is None or option_value(job.argv, "output-dir") is None):
        raise UsageError(
            f"--max-restarts is {job.max_restarts}.",
            "A restart continues from what outlives a pod.",
            "give --claim NAME, and the command --output-dir /data/FOLDER.",
        )


def _text(job: JobSpec, options: KubernetesOptions) -> str:
    is_mpi = options.kind == "MPIJob"
    fields, notes = (mpi_job, _notes) if is_mpi else (train_job, train_job_notes)
    text = yaml.dump(fields(job, options), Dumper=_Dumper, sort_keys=False, width=120)
    title = f"{options.kind} {job.name}: kubectl apply -f {job.name}.yaml"
    return comment(title, notes(job, options)) + "\n" + text


class _Dumper(yaml.SafeDumper):
    """Quotes also what only other readers of YAML than PyYAML take for a number or a truth value, as kubectl does."""


_OTHERS_READ: Final = re.compile(r"[-+]?\.?\d.*|[yn]|yes|no|on|off|true|false|null|~", re.IGNORECASE | re.DOTALL)


def _quoted_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _OTHERS_READ.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted_text)


def mpi_job(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": job.max_restarts}
    if job.time_limit is not None:
        policy["activeDeadlineSeconds"] = job.time_limit
    worker = {
        "name": "worker",
        "image": job.image,
        "command": ["/usr/sbin/sshd"],
        "args": ["-De", "-f", f"{HOME}/.sshd_config"],
        "resources": {"limits": limits(job, options)},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata(job, options),
        "spec": {
            "slotsPerWorker": job.slots,
            "runPolicy": policy,
            "mpiImplementation": IMPLEMENTATIONS[options.flavor],
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": f"{HOME}/.ssh",
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, _launcher(job, options), job, options),
                "Worker": _replicas(job.num_hosts, worker, job, options),
            },
        },
    }


def _replicas(count: int, container: dict[str, Any], job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    volumes, mounts = volumes_and_mounts(options)
    pod = {
        "terminationGracePeriodSeconds": math.ceil(job.grace),
        "securityContext": user(options),
        "containers": [{**container, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    # The operator makes no new pod for one that has failed, and a launcher that starts again would not find it.
    policy = "OnFailure" if container["name"] == "worker" else "Never"
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": pod}}


def _launcher(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    arguments = mpirun_arguments(replace(job, time_limit=None), options.flavor)  # runPolicy keeps the time
    words = list(arguments.options)
    if options.flavor in DAEMONS:
        setting, _, ssh = DAEMONS[options.flavor]
        words += ["--hostfile", HOSTFILE, setting, ssh, "-o ConnectionAttempts=10"]
    env = variables(job, dict(arguments.env))
    return {
        "name": "launcher",
        "image": job.image,
        "command": ["mpirun"],
        "args": [verbatim(word) for word in (*words, *job.argv)],
        **({"env": env} if env else {}),
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }


def _notes(job: JobSpec, options: KubernetesOptions) -> tuple[Note, ...]:
    return (
        *shared_notes(job, "a pod has one, and MPI finds it"),
        ("MPI", f"{FLAVORS[options.flavor]} in the image; --mpi says otherwise"),
        ("signal", "none for the workers before the job or a pod is ended: give the command a --max-time"),
        ("launcher", "starts when all workers are ready, since names of pods that are not cannot be resolved"),
        *pod_notes(job, options, f"; sshd listens where {HOME}/.sshd_config says"),
    )


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = launcher_api.job_from(options, command, python="python")
    for option, value, kind in (("--mpi", options.mpi, "MPIJob"), ("--runtime", options.runtime, "TrainJob")):
        if value is not None and options.kind != kind:
            raise UsageError(
                f"{option} was given with --kind {options.kind}.",
                f"It is of a job of the kind {kind}.",
                f"leave {option} out, or give --kind {kind}.",
            )
    settings = KubernetesOptions(
        kind=options.kind,
        runtime=options.runtime or "torch-distributed",
        flavor=options.mpi or "openmpi5",
        namespace=options.namespace,
        memory=options.memory,
        shared_memory=options.shm_size,
        claim=options.claim,
        run_as_user=options.run_as_user,
    )
    return launcher_api.print_or_execute(render(job, settings), options.dry_run, options.overwrite)


LAUNCHER = launcher_api.Launcher(
    "an MPIJob for the MPI Operator, or a TrainJob for Kubeflow Trainer",
    (
        *(*groups.JOB, *groups.CLUSTER, *groups.MACHINES, *groups.RESTARTS, groups.TIME_LIMIT, groups.MPI),
        groups.option("--kind", choices=KINDS, default="MPIJob", help="of the job (default: MPIJob)"),
        groups.option("--image", help="container image with hvdtrain, and mpirun or torch"),
        groups.option("--runtime", metavar="NAME", help="of a TrainJob, for torch (default: torch-distributed)"),
        groups.option("--namespace"),
        groups.option("--memory", metavar="16Gi", help="memory of each worker pod"),
        groups.option("--shm-size", default="8Gi", metavar="8Gi", help="size of /dev/shm"),
        groups.option("--claim", metavar="NAME", help="PersistentVolumeClaim to mount at /data"),
        groups.number("--run-as-user", metavar="UID", default=1000),
    ),
    _start,
)
