"""Laws over all layouts: rank and size are exact everywhere, and whatever is not marked "assumed" is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology, detect_topology, explain
from hvdtrain.topology.detect import READERS, UNJOINED

NUMBERS = ("rank", "size", "local_rank", "local_size", "node_rank", "num_nodes")


@dataclass(frozen=True)
class Process:
    """The truth about one process: its job's tasks per node, and its place."""

    per_node: tuple[int, ...]
    rank: int
    node_rank: int
    local_rank: int

    @property
    def size(self) -> int:
        return sum(self.per_node)

    @property
    def local_size(self) -> int:
        return self.per_node[self.node_rank]

    @property
    def num_nodes(self) -> int:
        return len(self.per_node)

    @property
    def nodes_with_this_local_rank(self) -> list[int]:
        return [node for node, count in enumerate(self.per_node) if count > self.local_rank]


def filled_in_order(per_node: Sequence[int]) -> list[Process]:
    """Ranks fill one node after the other, as horovodrun, torchrun and `mpirun --map-by slot` place them."""
    places = [(node, local) for node, count in enumerate(per_node) for local in range(count)]
    return [Process(tuple(per_node), rank, node, local) for rank, (node, local) in enumerate(places)]


def dealt_out(per_node: Sequence[int]) -> list[Process]:
    """Ranks go round the nodes, as `mpirun --map-by node` and `srun --distribution=cyclic` place them."""
    places = sorted((local, node) for node, count in enumerate(per_node) for local in range(count))
    return [Process(tuple(per_node), rank, node, local) for rank, (local, node) in enumerate(places)]


def by_horovod(p: Process) -> dict[str, object]:
    crossing = p.nodes_with_this_local_rank
    return {
        "HOROVOD_RANK": p.rank,
        "HOROVOD_SIZE": p.size,
        "HOROVOD_LOCAL_RANK": p.local_rank,
        "HOROVOD_LOCAL_SIZE": p.local_size,
        "HOROVOD_CROSS_RANK": crossing.index(p.node_rank),
        "HOROVOD_CROSS_SIZE": len(crossing),
        "HOROVOD_HOSTNAME": f"n{p.node_rank}",
    }


def by_open_mpi(p: Process) -> dict[str, object]:
    return {
        "OMPI_COMM_WORLD_RANK": p.rank,
        "OMPI_COMM_WORLD_SIZE": p.size,
        "OMPI_COMM_WORLD_LOCAL_RANK": p.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": p.local_size,
        "OMPI_COMM_WORLD_NODE_RANK": p.local_rank,
        "PMIX_RANK": p.rank,
        "PMIX_HOSTNAME": f"n{p.node_rank}",
    }


def by_mvapich(p: Process) -> dict[str, object]:
    return {
        "MV2_COMM_WORLD_RANK": p.rank,
        "MV2_COMM_WORLD_SIZE": p.size,
        "MV2_COMM_WORLD_LOCAL_RANK": p.local_rank,
        "MV2_COMM_WORLD_LOCAL_SIZE": p.local_size,
    }


def by_hydra(p: Process) -> dict[str, object]:
    local = {"MPI_LOCALRANKID": p.local_rank, "MPI_LOCALNRANKS": p.local_size}
    return {"PMI_RANK": p.rank, "PMI_SIZE": p.size, **local}


def by_jsrun(p: Process) -> dict[str, object]:
    return {
        "JSM_NAMESPACE_RANK": p.rank,
        "JSM_NAMESPACE_SIZE": p.size,
        "JSM_NAMESPACE_LOCAL_RANK": p.local_rank,
        "JSM_NAMESPACE_LOCAL_SIZE": p.local_size,
    }


def by_plain_pmi(p: Process) -> dict[str, object]:
    return {"PMI_RANK": p.rank, "PMI_SIZE": p.size}


def by_torchrun(p: Process) -> dict[str, object]:
    return {
        "TORCHELASTIC_RUN_ID": "1",
        "RANK": p.rank,
        "WORLD_SIZE": p.size,
        "LOCAL_RANK": p.local_rank,
        "LOCAL_WORLD_SIZE": p.local_size,
        "GROUP_RANK": p.node_rank,
        "GROUP_WORLD_SIZE": p.num_nodes,
    }


def by_hand(p: Process) -> dict[str, object]:
    return {"RANK": p.rank, "WORLD_SIZE": p.size}


def by_hand_with_local_rank(p: Process) -> dict[str, object]:
    return {**by_hand(p), "LOCAL_RANK": p.local_rank}


def by_srun(p: Process) -> dict[str, object]:
    runs = [(count, len(list(same))) for count, same in groupby(p.per_node)]
    return {
        "SLURM_STEP_ID": 3,
        "SLURM_PROCID": p.rank,
        "SLURM_LOCALID": p.local_rank,
        "SLURM_NODEID": p.node_rank,
        "SLURM_STEP_NUM_TASKS": p.size,
        "SLURM_STEP_NUM_NODES": p.num_nodes,
        "SLURM_STEP_TASKS_PER_NODE": ",".join(f"{n}(x{k})" if k > 1 else f"{n}" for n, k in runs),
        "SLURM_STEP_NODELIST": f"n[0-{p.num_nodes - 1}]",
        "SLURM_NTASKS": 999,  # the job's, which is not the step's
        "SLURM_TASKS_PER_NODE": "333(x3)",
    }


def by_srun_pmi2(p: Process) -> dict[str, object]:
    return {**by_srun(p), **by_plain_pmi(p)}


def by_srun_pmix(p: Process) -> dict[str, object]:
    return {**by_srun(p), "PMIX_RANK": p.rank}


Launcher = Callable[[Process], dict[str, object]]
FULLY_TELLING: list[Launcher] = [by_torchrun, by_srun, by_srun_pmi2, by_srun_pmix]
TELLING_LOCAL: list[Launcher] = [by_horovod, by_open_mpi, by_mvapich, by_hydra, by_jsrun]
TELLING_LITTLE: list[Launcher] = [by_plain_pmi, by_hand, by_hand_with_local_rank]
ALL = FULLY_TELLING + TELLING_LOCAL + TELLING_LITTLE

layouts = st.lists(st.integers(1, 5), min_size=1, max_size=5)
even_layouts = st.builds(lambda count, nodes: [count] * nodes, st.integers(1, 5), st.integers(1, 5))


def detected(launcher: Launcher, process: Process) -> Topology:
    return detect_topology({name: str(value) for name, value in launcher(process).items()})


def differing(topology: Topology, truth: Process) -> set[str]:
    return {name for name in NUMBERS if getattr(topology, name) != getattr(truth, name)}


@pytest.mark.parametrize("launcher", ALL)
@pytest.mark.parametrize("order", [filled_in_order, dealt_out])
@given(per_node=layouts)
def test_only_what_is_marked_assumed_can_be_wrong(
    launcher: Launcher, order: Callable[[Sequence[int]], list[Process]], per_node: list[int]
) -> None:
    for truth in order(per_node):
        topology = detected(launcher, truth)
        assumed = {name for name, source in topology.source.items() if source.startswith("assumed: ")}
        assert not assumed & {"rank", "size"}
        assert differing(topology, truth) <= assumed
        assert topology.hosts in ((), tuple(f"n{node}" for node in range(truth.num_nodes)))


@pytest.mark.parametrize("launcher", FULLY_TELLING)
@given(per_node=layouts)
def test_launchers_that_tell_all_leave_nothing_to_assume(launcher: Launcher, per_node: list[int]) -> None:
    for truth in filled_in_order(per_node):
        topology = detected(launcher, truth)
        assert differing(topology, truth) == set()
        assert not [source for source in topology.source.values() if source.startswith("assumed")]


@pytest.mark.parametrize("launcher", TELLING_LOCAL)
@given(per_node=even_layouts)
def test_on_even_nodes_filled_in_order_the_assumptions_are_true(launcher: Launcher, per_node: list[int]) -> None:
    for truth in filled_in_order(per_node):
        assert differing(detected(launcher, truth), truth) == set()


@given(per_node=layouts)
def test_horovods_first_process_of_each_node_knows_its_node(per_node: list[int]) -> None:
    for truth in filled_in_order(per_node):
        topology = detected(by_horovod, truth)
        if truth.local_rank == 0:
            assert (topology.node_rank, topology.num_nodes) == (truth.node_rank, truth.num_nodes)
            assert topology.source["num_nodes"] == f"HOROVOD_CROSS_SIZE={truth.num_nodes}"


@given(per_node=even_layouts)
def test_ranks_dealt_out_by_open_mpi_are_recognised_where_only_that_order_fits(per_node: list[int]) -> None:
    for truth in dealt_out(per_node):
        if truth.rank % truth.local_size != truth.local_rank:
            assert differing(detected(by_open_mpi, truth), truth) == set()


TABLES = {name for reader in READERS for names in reader.table.values() for name in names}
VARIABLES = sorted(TABLES | {name for unjoined in UNJOINED for name in unjoined.variables} | {"NPROC_PER_NODE"})
LISTS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST")
small = st.integers(0, 4).map(str)
numbers = st.dictionaries(st.sampled_from([*VARIABLES, "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"]), small, max_size=12)
lists = st.dictionaries(st.sampled_from(LISTS), st.sampled_from(["1", "2(x2)", "2,1", "n[1-2]", "n[", ""]))


@given(env=st.builds(lambda a, b: a | b, numbers, lists))
def test_any_mixture_of_variables_gives_a_consistent_topology_or_a_usage_error(env: dict[str, str]) -> None:
    used = [item for item in explain(env) if item.used]
    try:
        t = detect_topology(env)
    except UsageError:
        assert used == []
        return
    assert len(used) == 1
    assert 0 <= t.rank < t.size
    assert 0 <= t.local_rank < t.local_size <= t.size - t.num_nodes + 1
    assert 0 <= t.node_rank < t.num_nodes
    assert len(t.hosts) in (0, t.num_nodes)
    assert (t.num_nodes == 1) == (t.local_size == t.size)
    for name, source in t.source.items():
        variable, equals, value = source.partition(",")[0].partition("=")
        if equals and not source.startswith("assumed: ") and "TASKS_PER_NODE" not in source:
            assert env[variable] == value == str(asdict(t)[name])
