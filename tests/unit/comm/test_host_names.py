"""All ranks know the host of each rank, however a launcher numbers them."""

from __future__ import annotations

import pytest
from support.ranks import run_on_ranks

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.host_names import counted_hosts, gather_hosts
from hvdtrain.topology import Topology


@pytest.mark.parametrize(
    ("hosts", "local"),
    [
        (["a"], [(0, 1)]),
        (["a", "a", "b", "b"], [(0, 2), (1, 2), (0, 2), (1, 2)]),
        (["a", "b", "b"], [(0, 1), (0, 2), (1, 2)]),
        (["a", "b", "a", "b"], [(0, 2), (0, 2), (1, 2), (1, 2)]),  # one rank on each host after the other
        (["a", "a", "b", "b"], [(1, 2), (0, 2), (0, 2), (1, 2)]),
        (["a", "b", "c"], [(0, 3), (1, 3), (2, 3)]),  # the launcher knows of one host only
        (["a", "a", "a"], [(0, 1), (0, 1), (0, 1)]),
        (["a", "b", "b"], [(1, 2), (1, 2), (1, 2)]),  # nobody is the first one
        (["ä\n", "ä\n", "\udcff"], [(0, 2), (1, 2), (0, 1)]),
        (["a", "a", "b", "a"], [(0, 3), (1, 3), (0, 1), (2, 3)]),
    ],
)
def test_names_are_those_of_the_ranks(hosts: list[str], local: list[tuple[int, int]]) -> None:
    def gather(comm: Communicator) -> list[str]:
        rank, size = comm.topology.rank, comm.topology.size
        comm.topology = Topology(rank, size, *local[rank])
        return gather_hosts(comm, hosts[rank], "hosts")

    assert run_on_ranks(len(hosts), gather) == [hosts] * len(hosts)


def test_hosts_are_counted_in_the_order_of_ranks() -> None:
    assert counted_hosts(["a", "a", "b", "a"]) == ["a:2", "b:1", "a:1"]
