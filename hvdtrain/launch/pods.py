"""What the jobs of Kubernetes have in common: options, volumes, limits, the user, and variables from a secret."""

import re
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import JobSpec, require_choice
from hvdtrain.launch.rendering import Note
from hvdtrain.launch.supervisor.restarts import option_value, trains

KINDS = ("MPIJob", "TrainJob")
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?([EPTGMk]i?|m)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """What only Kubernetes asks for; memory is of each worker pod, as Kubernetes writes quantities."""

    kind: str = "MPIJob"  # one of KINDS
    runtime: str = "torch-distributed"  # of a TrainJob: a ClusterTrainingRuntime for torch
    flavor: str = "openmpi5"  # of the image's mpirun: one of `option_groups.FLAVORS`
    namespace: str | None = None  # None: that of kubectl's context
    memory: str | None = None
    shared_memory: str = "8Gi"  # /dev/shm
    claim: str | None = None  # a PersistentVolumeClaim for data and run folders, at /data in every pod
    run_as_user: int = 1000  # the image's user, never 0

    def __post_init__(self) -> None:
        require_choice(f"The kind of job is {self.kind!r}.", self.kind, KINDS)
        for name, label in (("--namespace", self.namespace), ("--claim", self.claim), ("--runtime", self.runtime)):
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


def metadata(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    return {"name": job.name, **({"namespace": options.namespace} if options.namespace else {})}


def limits(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    """Of a worker pod."""
    cores = None if job.cores_per_host is None else str(job.cores_per_host)
    found = {"cpu": cores, "memory": options.memory, "nvidia.com/gpu": job.gpus_per_host or None}
    return {name: limit for name, limit in found.items() if limit is not None}


def volumes_and_mounts(options: KubernetesOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Memory for processes of a pod to share, and the claim."""
    shared = {"medium": "Memory", "sizeLimit": options.shared_memory}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shared}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if options.claim is not None:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": options.claim}})
        mounts.append({"name": "data", "mountPath": "/data"})
    return volumes, mounts


def user(options: KubernetesOptions) -> dict[str, Any]:
    """The security context of a pod."""
    number = options.run_as_user
    return {"runAsUser": number, "runAsGroup": number, "fsGroup": number, "runAsNonRoot": True}


def verbatim(word: str) -> str:
    """What Kubernetes passes on as this word: it replaces $(NAME), and writes $ for $$."""
    return re.sub(r"\$(?=[$(])", "$$", word)


def variables(job: JobSpec, values: dict[str, str]) -> list[dict[str, Any]]:
    """Of a container: these, and those that are passed on, from a secret of the job's name."""
    secret = {"name": f"{job.name}-env"}
    stated = [{"name": name, "value": verbatim(value)} for name, value in sorted(values.items())]
    return [*stated, *({"name": name, "valueFrom": {"secretKeyRef": {**secret, "key": name}}} for name in job.env)]


def pod_notes(job: JobSpec, options: KubernetesOptions, user_note: str) -> list[Note]:
    """What a reader may wonder about in any kind of job. Args: `user_note`: what is to be said of the user besides."""
    notes = [
        ("/dev/shm", f"{options.shared_memory} of memory: 64 MiB, the default, are too few for NCCL and data workers"),
        ("user", f"{options.run_as_user}, not root{user_note}"),
    ]
    folder = option_value(job.argv, "output-dir")
    if trains(job.argv) and (options.claim is None or folder is None or not f"{folder}/".startswith("/data/")):
        kept = "give --claim NAME, and the command --output-dir /data/FOLDER"
        notes.append(("run folder", f"INSIDE A POD, AND DELETED WITH IT, unless a config file names another: {kept}"))
    if job.env:
        secret = f"{job.name}-env"
        notes.append(("variables", f"from a secret: kubectl create secret generic {secret} --from-env-file=FILE"))
    return notes
