"""Where workers may run: hosts and slots, from whatever names them.

    parse_host_list("a:4,b:4")              -H
    read_hostfile(path)                     Open MPI's, MPICH's and plain files; /etc/mpi/hostfile
    read_rank_table(path)                   JSON: servers, devices, rank ids
    platform_hosts(os.environ)                what Slurm, the MPI Operator or SageMaker say about this job

Each returns a tuple of `Host` in the order in which ranks are dealt out.
"""

from __future__ import annotations

from hvdtrain.launch.hosts.host import Host, join_hosts, total_slots
from hvdtrain.launch.hosts.hostfile import parse_hostfile, read_hostfile
from hvdtrain.launch.hosts.listed import parse_host_list
from hvdtrain.launch.hosts.platform_hosts import Found, hosts_from_sagemaker, hosts_from_slurm, platform_hosts
from hvdtrain.launch.hosts.rank_table import parse_rank_table, read_rank_table

__all__ = [
    "Found",
    "Host",
    "platform_hosts",
    "hosts_from_sagemaker",
    "hosts_from_slurm",
    "join_hosts",
    "parse_host_list",
    "parse_hostfile",
    "parse_rank_table",
    "read_hostfile",
    "read_rank_table",
    "total_slots",
]
