"""Hosts of the job around this process, as its platform names them: Slurm, PBS, LSF, the MPI Operator, SageMaker.

Platforms describe hosts, not ranks, so they say where a job may run; what this process is, `hvdtrain.topology` says.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, join_hosts, parse_slots
from hvdtrain.launch.hosts.host_files import read_hostfile
from hvdtrain.topology.nodelist import expand_node_list, expand_tasks_per_node

MPI_OPERATOR_HOSTFILE = Path("/etc/mpi/hostfile")
"""github.com/kubeflow/mpi-operator, pkg/controller/mpi_job_controller.go: configMountPath and hostfileName."""


def platform_hosts(
    env: Mapping[str, str], hostfile: Path = MPI_OPERATOR_HOSTFILE
) -> tuple[tuple[Host, ...], str] | None:
    """The hosts that were given to this job and what states them, or None outside any; the innermost platform decides.

    Raises UsageError where what states hosts cannot be understood.
    """
    if env.get("SLURM_JOB_NODELIST"):
        return hosts_from_slurm(env), f"SLURM_JOB_NODELIST={env['SLURM_JOB_NODELIST']}"
    if env.get("PBS_NODEFILE"):
        return hosts_from_pbs(env), f"PBS_NODEFILE={env['PBS_NODEFILE']}"
    if env.get("LSB_MCPU_HOSTS"):
        return hosts_from_lsf(env), f"LSB_MCPU_HOSTS={env['LSB_MCPU_HOSTS']}"
    if hostfile.is_file():
        return read_hostfile(hostfile), str(hostfile)
    if env.get("SM_HOSTS"):
        return hosts_from_sagemaker(env), f"SM_HOSTS={env['SM_HOSTS']}"
    return None


def hosts_from_slurm(env: Mapping[str, str]) -> tuple[Host, ...]:
    """Nodes of the allocation with the tasks of each: SLURM_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE, else one.
    Raises UsageError: a list that is not valid, or lists of different lengths."""
    names = expand_node_list(env["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")
    if "SLURM_TASKS_PER_NODE" not in env:
        slots = parse_slots(env.get("SLURM_NTASKS_PER_NODE", "1"), "each node", "SLURM_NTASKS_PER_NODE: ")
        return join_hosts([(name, slots) for name in names], "SLURM_JOB_NODELIST")
    tasks = expand_tasks_per_node(env["SLURM_TASKS_PER_NODE"], "SLURM_TASKS_PER_NODE")
    if len(tasks) != len(names):
        raise UsageError(
            f"SLURM_JOB_NODELIST names {len(names)} nodes and SLURM_TASKS_PER_NODE counts {len(tasks)}.",
            "Both describe the same allocation.",
            "run this directly in the batch script or in salloc's shell, or name the hosts with -H.",
        )
    return join_hosts(zip(names, tasks, strict=True), "SLURM_JOB_NODELIST")


def hosts_from_pbs(env: Mapping[str, str]) -> tuple[Host, ...]:
    """Those of the file PBS_NODEFILE, which names a node once for each of its slots. Raises UsageError: no such file,
    or a line that is not a host."""
    return join_hosts(
        [(host.name, None) for host in read_hostfile(Path(env["PBS_NODEFILE"])) for _ in range(host.slots)],
        "PBS_NODEFILE",
    )


def hosts_from_lsf(env: Mapping[str, str]) -> tuple[Host, ...]:
    """Those of LSB_MCPU_HOSTS, "a 4 b 4". Where CSM_ALLOCATION_ID is set, the first one is the launch node, which runs
    no workers. Raises UsageError: a list that is not valid, or no host but the launch node."""
    words = env["LSB_MCPU_HOSTS"].split()
    if len(words) % 2:
        raise UsageError(
            f"LSB_MCPU_HOSTS is {env['LSB_MCPU_HOSTS'][:80]!r}.",
            'LSF writes hosts and their slots there, such as "a 4 b 4".',
            "unset LSB_MCPU_HOSTS if LSF did not set it, or name the hosts with -H.",
        )
    pairs = list(zip(words[::2], words[1::2], strict=True))[1 if "CSM_ALLOCATION_ID" in env else 0 :]
    slots = [(name, parse_slots(count, name, "LSB_MCPU_HOSTS: ")) for name, count in pairs]
    return join_hosts([(name, None) for name, count in slots for _ in range(count)], "LSB_MCPU_HOSTS")


def hosts_from_sagemaker(env: Mapping[str, str]) -> tuple[Host, ...]:
    """Those of the JSON list SM_HOSTS, each with SM_NUM_GPUS slots, else one; UsageError: no such list or number."""
    try:
        names = json.loads(env.get("SM_HOSTS", ""))
    except (json.JSONDecodeError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"SM_HOSTS is {env.get('SM_HOSTS', '')[:80]!r}.",
            'SageMaker writes a JSON list of names there, such as ["algo-1","algo-2"].',
            "unset SM_HOSTS if SageMaker did not set it.",
        )
    gpus = env.get("SM_NUM_GPUS", "0")
    each = 1 if gpus == "0" else parse_slots(gpus, "each host", "SM_NUM_GPUS: ")
    return join_hosts([(name, each) for name in names], "SM_HOSTS")
