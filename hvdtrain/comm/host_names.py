"""The host of each rank, known to all ranks."""

import json
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json


def gather_hosts(comm: Communicator, host: str, name: str) -> list[str]:
    """Every rank's `host`, in the order of ranks. Collective.

    Launchers mostly number the ranks of a host one after the other. So only the first of each sends its name, with how
    many they are, and each rank looks whether it stands where it should. If one does not, all names are sent.
    """
    topology = comm.topology
    line = f"{json.dumps([topology.local_size, host])}\n" if topology.local_rank == 0 else ""
    lines = comm.allgather(np.frombuffer(line.encode(), np.uint8), f"{name}.first").tobytes().decode().splitlines()
    counted = [json.loads(text) for text in lines]
    hosts = [name for count, name in counted for _ in range(count)]
    is_right = len(hosts) == topology.size and hosts[topology.rank] == host
    if comm.allreduce(np.array([not is_right], np.int64), f"{name}.wrong")[0]:
        return gather_json(comm, host, name)
    return hosts


def counted_hosts(hosts: Sequence[str]) -> list[str]:
    """Hosts in the order of ranks, each with how many ranks follow each other there: "node1:8"."""
    return [f"{host}:{len(list(ranks))}" for host, ranks in groupby(hosts)]
