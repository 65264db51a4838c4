"""Variables of real processes (`dumps/`, each says what printed it) and what must be read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.topology import Topology, detect_topology, explain

DUMPS = Path(__file__).with_name("dumps")


def read_dump(name: str) -> dict[str, str]:
    """The variables of `dumps/NAME.env`; lines that begin with # are for people."""
    lines = (DUMPS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


BOTH = ("n1", "n2")
EXPECTED = {
    # dump: (rank, size, local_rank, local_size, node_rank, num_nodes, hosts, launcher)
    "horovodrun_gloo": (1, 2, 1, 2, 0, 1, ("localhost",), "horovodrun"),
    "openmpi5": (1, 2, 1, 2, 0, 1, ("node1",), "mpirun"),
    "torchrun": (1, 2, 1, 2, 0, 1, (), "torchrun"),
    "hydra": (2, 3, 2, 3, 0, 1, (), "pmi"),
    "srun": (2, 3, 0, 1, 1, 2, BOTH, "slurm"),
    "srun_pmi2": (2, 3, 0, 1, 1, 2, BOTH, "pmi"),
    "srun_pmix": (2, 3, 0, 1, 1, 2, BOTH, "pmi"),
    "sbatch_srun": (3, 4, 0, 1, 1, 2, BOTH, "slurm"),
    "sbatch_script": (0, 1, 0, 1, 0, 1, (), "single"),
    "salloc": (0, 1, 0, 1, 0, 1, (), "single"),
    "sbatch_inside_step": (0, 1, 0, 1, 0, 1, ("n1",), "slurm"),
}


LAST_OF_THREE = {
    # Dumps of rank 2 on host2, where ranks 0 and 1 are on host1: dump → launcher.
    "horovodrun_gloo_hosts": "horovodrun",
    "sbatch_horovodrun": "horovodrun",
    "horovodrun_mpi_hosts": "mpirun",
    "openmpi4_hosts": "mpirun",
    "openmpi5_hosts": "mpirun",
    "sbatch_openmpi4": "mpirun",
    "sbatch_openmpi5": "mpirun",
    "mpich_hosts": "pmi",
    "intel_hosts": "pmi",
    "sbatch_mpich": "pmi",
    "sbatch_intel": "pmi",
}
LAST_OF_FOUR = ("torchrun_hosts", "srun_torchrun")
"""Dumps of rank 3, where host1 and host2 have two ranks each."""


def facts_of(topology: Topology) -> tuple[object, ...]:
    """Everything but the sources."""
    numbers = (topology.rank, topology.size, topology.local_rank, topology.local_size)
    return (*numbers, topology.node_rank, topology.num_nodes, topology.hosts, topology.launcher)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_process_is_placed_exactly(name: str) -> None:
    topology = detect_topology(read_dump(name))
    assert facts_of(topology) == EXPECTED[name]
    assert not [source for source in topology.source.values() if source.startswith("assumed")]


@pytest.mark.parametrize("name", LAST_OF_THREE)
def test_the_last_rank_of_an_uneven_job_is_placed_exactly_or_says_what_it_assumes(name: str) -> None:
    """MPI does not tell how many nodes there are; what is made up for that is marked, until Horovod has been asked."""
    topology = detect_topology(read_dump(name))
    assert facts_of(topology)[:4] == (2, 3, 0, 1)
    assert topology.launcher == LAST_OF_THREE[name]
    assumed = {fact for fact, source in topology.source.items() if source.startswith("assumed")}
    if LAST_OF_THREE[name] == "horovodrun":
        assert (topology.node_rank, topology.num_nodes, assumed) == (1, 2, set())
    else:
        assert assumed == {"node_rank", "num_nodes"}


@pytest.mark.parametrize("name", LAST_OF_FOUR)
def test_the_last_rank_of_torchrun_on_two_hosts_is_placed_exactly(name: str) -> None:
    topology = detect_topology(read_dump(name))
    assert facts_of(topology) == (3, 4, 1, 2, 1, 2, (), "torchrun")


def test_every_dump_is_tested() -> None:
    assert {path.stem for path in DUMPS.glob("*.env")} == {*EXPECTED, *LAST_OF_THREE, *LAST_OF_FOUR, "sbatch_hydra"}


def test_hydra_inside_a_batch_job_is_not_taken_for_its_own_proxies() -> None:
    env = read_dump("sbatch_hydra")
    assert (env["PMI_RANK"], env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]) == ("3", "1", "2")
    topology = detect_topology(env)
    assert facts_of(topology)[:4] == (3, 4, 0, 1)
    assert (topology.launcher, topology.hosts) == ("pmi", ())
    assert topology.source["num_nodes"].startswith("assumed: ")
    slurm = next(item for item in explain(env) if item.platform == "Slurm")
    assert not slurm.used
    assert slurm.why == "PMI comes first: it is inside, or says the same"


def test_the_sources_name_the_variable_that_decided() -> None:
    assert detect_topology(read_dump("srun_pmix")).source == {
        "rank": "PMIX_RANK=2",
        "size": "SLURM_STEP_NUM_TASKS=3",
        "local_rank": "SLURM_LOCALID=0",
        "local_size": "SLURM_STEP_TASKS_PER_NODE=2,1, entry 1",
        "node_rank": "SLURM_NODEID=1",
        "num_nodes": "SLURM_STEP_NUM_NODES=2",
    }
    assert detect_topology(read_dump("openmpi5")).source == {
        "rank": "OMPI_COMM_WORLD_RANK=1",
        "size": "OMPI_COMM_WORLD_SIZE=2",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE=2",
        "node_rank": "derived: all processes are on this node",
        "num_nodes": "derived: all processes are on this node",
    }
