"""An MPIJob of the Kubernetes MPI Operator, API kubeflow.org/v2beta1.

Source: github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and examples/v2beta1.
"""

import math
import re
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import yaml

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.mpirun import DAEMONS, mpirun_arguments
from hvdtrain.launch.option_groups import FLAVORS
from hvdtrain.launch.rendering import ELASTIC, LaunchPlan, Note, comment, require_supported, shared_notes
from hvdtrain.launch.supervisor.restarts import option_value

IMPLEMENTATIONS = {"openmpi4": "OpenMPI", "openmpi5": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
HOSTFILE = "/etc/mpi/hostfile"
HOME = "/home/hvdtrain"  # home of the image's user, where sshd's settings and the operator's keys are
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?([EPTGMk]i?|m)?")
_UNSUPPORTED = (*ELASTIC, "hosts", "ssh_port", "start_timeout", "allow_root")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """What only Kubernetes asks for; memory is of each worker pod, as Kubernetes writes quantities."""

    flavor: str = "openmpi5"  # of the image's mpirun: one of `option_groups.FLAVORS`
    namespace: str | None = None  # None: that of kubectl's context
    memory: str | None = None
    shared_memory: str = "8Gi"  # /dev/shm
    claim: str | None = None  # a PersistentVolumeClaim for data and run folders, at /data in every pod
    run_as_user: int = 1000  # the image's user, never 0

    def __post_init__(self) -> None:
        for name, label in (("--namespace", self.namespace), ("--claim", self.claim)):
            if label is not None:
                require_label(name, label)
        for name, quantity in (("--memory", self.memory), ("--shm-size", self.shared_memory)):
            if quantity is not None and not _QUANTITY.fullmatch(quantity):
                raise UsageError(
                    f"{name} is {quantity[:80]!r}.", "This is not an amount of memory.", "write e.g. 16Gi."
                )
        if not 1 <= self.run_as_user < 2**31:
            raise UsageError(
                f"--run-as-user is {self.run_as_user}.", "Workers do not run as root.", "use the image's user, 1000."
            )


def require_label(option_name: str, text: str) -> None:
    """Raise UsageError unless `text` can name an object whose pods get names and host names from it."""
    if not _LABEL.fullmatch(text):
        raise UsageError(
            f"{option_name} is {text[:80]!r}.",
            "Kubernetes has names of lower-case letters, digits and -, at most 50 here.",
            f"for example: {option_name} digits-1.",
        )


def render(job: JobSpec, options: KubernetesOptions | None = None, program: str = "kubectl") -> LaunchPlan:
    """The MPIJob of a job with an image, and the kubectl that hands it over; UsageError: the job cannot be one."""
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
    text = yaml.safe_dump(mpi_job(job, options), sort_keys=False, width=120)
    return comment(f"MPIJob {job.name}: kubectl apply -f {job.name}.yaml", _notes(job, options)) + "\n" + text


def mpi_job(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": job.max_restarts}
    if job.time_limit is not None:
        policy["activeDeadlineSeconds"] = job.time_limit
    cores = None if job.cores_per_host is None else str(job.cores_per_host)
    limits = {"cpu": cores, "memory": options.memory, "nvidia.com/gpu": job.gpus_per_host or None}
    worker = {
        "name": "worker",
        "image": job.image,
        "command": ["/usr/sbin/sshd"],
        "args": ["-De", "-f", f"{HOME}/.sshd_config"],
        "resources": {"limits": {name: limit for name, limit in limits.items() if limit is not None}},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job.name, **({"namespace": options.namespace} if options.namespace else {})},
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
    shared = {"medium": "Memory", "sizeLimit": options.shared_memory}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shared}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if options.claim is not None:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": options.claim}})
        mounts.append({"name": "data", "mountPath": "/data"})
    pod = {
        "terminationGracePeriodSeconds": math.ceil(job.grace),
        "securityContext": {
            "runAsUser": options.run_as_user,
            "runAsGroup": options.run_as_user,
            "fsGroup": options.run_as_user,
            "runAsNonRoot": True,
        },
        "containers": [{**container, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def _launcher(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    arguments = mpirun_arguments(replace(job, time_limit=None), options.flavor)  # runPolicy keeps the time
    words = list(arguments.options)
    if options.flavor in DAEMONS:
        setting, _, ssh = DAEMONS[options.flavor]
        words += ["--hostfile", HOSTFILE, setting, ssh, "-o ConnectionAttempts=10"]
    secret = {"name": f"{job.name}-env"}
    values = [{"name": name, "value": value} for name, value in sorted(arguments.env.items())]
    names = [{"name": name, "valueFrom": {"secretKeyRef": {**secret, "key": name}}} for name in job.env]
    return {
        "name": "launcher",
        "image": job.image,
        "command": ["mpirun"],
        "args": [*words, *job.argv],
        **({"env": [*values, *names]} if values or names else {}),
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }


def _notes(job: JobSpec, options: KubernetesOptions) -> tuple[Note, ...]:
    notes = [
        *shared_notes(job, "a pod has one, and MPI finds it"),
        ("MPI", f"{FLAVORS[options.flavor]} in the image; --mpi says otherwise"),
        ("launcher", "starts when all workers are ready, since names of pods that are not cannot be resolved"),
        ("/dev/shm", f"{options.shared_memory} of memory: 64 MiB, the default, are too few for NCCL and data workers"),
        ("user", f"{options.run_as_user}, not root; sshd listens where {HOME}/.sshd_config says"),
    ]
    if job.env:
        secret = f"{job.name}-env"
        notes.append(("variables", f"from a secret: kubectl create secret generic {secret} --from-env-file=FILE"))
    return tuple(notes)


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = launcher_api.job_from(options, command, python="python")
    settings = KubernetesOptions(
        flavor=options.mpi or "openmpi5",
        namespace=options.namespace,
        memory=options.memory,
        shared_memory=options.shm_size,
        claim=options.claim,
        run_as_user=options.run_as_user,
    )
    return launcher_api.print_or_execute(render(job, settings), options.dry_run, options.overwrite)


LAUNCHER = launcher_api.Launcher(
    "an MPIJob for the MPI Operator",
    (
        *(*groups.JOB, *groups.CLUSTER, *groups.MACHINES, *groups.RESTARTS, groups.TIME_LIMIT, groups.MPI),
        groups.option("--image", help="container image with hvdtrain and mpirun"),
        groups.option("--namespace"),
        groups.option("--memory", metavar="16Gi", help="memory of each worker pod"),
        groups.option("--shm-size", default="8Gi", metavar="8Gi", help="size of /dev/shm"),
        groups.option("--claim", metavar="NAME", help="PersistentVolumeClaim to mount at /data"),
        groups.number("--run-as-user", metavar="UID", default=1000),
    ),
    _start,
)
