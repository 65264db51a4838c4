"""A TrainJob of Kubeflow Trainer, API trainer.kubeflow.org/v1alpha1: torchrun in each pod, without MPI and ssh.

Source: github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go. A runtime for torch tells torchrun by
PET_* variables where it is; its pods come from the replicated job `node`, whose container has the same name.
"""

from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import MEETING, JobSpec, is_script
from hvdtrain.launch.pods import (
    KubernetesOptions,
    limits,
    metadata,
    pod_notes,
    user,
    variables,
    verbatim,
    volumes_and_mounts,
)
from hvdtrain.launch.rendering import Note, require_supported, shared_notes, worker_variables

_NODE = "node"
_MANAGER = "hvdtrain/launch"  # whose patches these are, as the API wants to know


def require_train_job(job: JobSpec) -> None:
    """Raise UsageError for a job that a TrainJob cannot be: its restarts and grace are those of its runtime."""
    require_supported(job, "a TrainJob", ("hosts", "max_restarts", "grace"))
    if job.num_hosts * job.slots != job.np:
        raise UsageError(
            f"The job has {job.np} workers, on {job.num_hosts} nodes with {job.slots} each.",
            "torchrun starts as many on every node.",
            f"use -np {job.num_hosts * job.slots}, or another --slots-per-host.",
        )


def train_job(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    """The TrainJob of a job with an image."""
    volumes, mounts = volumes_and_mounts(options)
    pod = {
        "volumes": volumes,
        "containers": [{"name": _NODE, "volumeMounts": mounts}],
        "securityContext": user(options),
    }
    nodes = {"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [nodes]}}}}
    deadline = {} if job.time_limit is None else {"activeDeadlineSeconds": job.time_limit}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, options),
        "spec": {
            "runtimeRef": {"name": options.runtime},
            "trainer": _trainer(job, options),
            "runtimePatches": [patch],
            **deadline,
        },
    }


def _trainer(job: JobSpec, options: KubernetesOptions) -> dict[str, Any]:
    program = (*MEETING, *job.argv) if is_script(job.command) else ("-m", "hvdtrain", *job.command)
    env = variables(job, worker_variables(job))
    resources = limits(job, options)
    return {
        "image": job.image,
        "command": ["torchrun"] if job.python == "python" else [job.python, "-m", "torch.distributed.run"],
        "args": [verbatim(word) for word in program],
        **({"env": env} if env else {}),
        "numNodes": job.num_hosts,
        "numProcPerNode": job.slots,
        **({"resourcesPerNode": {"limits": resources}} if resources else {}),
    }


def notes(job: JobSpec, options: KubernetesOptions) -> tuple[Note, ...]:
    """What a reader may wonder about."""
    return (
        *shared_notes(job, "a pod has one, and Horovod finds it"),
        ("Kubeflow Trainer", "2.2 or later: earlier ones have no runtimePatches"),
        ("runtime", f"{options.runtime}, which tells torchrun where the others are; --runtime names another for torch"),
        *pod_notes(job, options, ""),
    )
