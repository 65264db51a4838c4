"""torchrun, and everything else that speaks RANK and WORLD_SIZE: accelerate, Kubeflow's PyTorchJob, a line of shell.

One agent per node, so GROUP_RANK and GROUP_WORLD_SIZE are node rank and number of nodes. Those who export RANK and
WORLD_SIZE from Slurm's variables often leave out the rest: an agreeing Slurm step tells it. Variables:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

from hvdtrain.topology.assume import assume_place
from hvdtrain.topology.facts import Env, Facts
from hvdtrain.topology.reader import Reader
from hvdtrain.topology.readers.slurm import fill_from_step, hosts_of_step

AGENT = "TORCHELASTIC_RUN_ID"
"""Set by a torchrun agent for its workers, and by nobody else."""


def _hosts(facts: Facts, env: Env) -> tuple[str, ...]:
    # Agents number themselves in the order in which they met, which need not be that of Slurm's node list.
    return () if AGENT in env else hosts_of_step(facts, env)


def _place(facts: Facts, _env: Env) -> Facts:
    return assume_place(facts)


READER = Reader(
    platform="torchrun",
    launcher="torchrun",
    table={
        "rank": ("RANK",),
        "size": ("WORLD_SIZE",),
        "local_rank": ("LOCAL_RANK",),
        "local_size": ("LOCAL_WORLD_SIZE",),
        "node_rank": ("GROUP_RANK",),
        "num_nodes": ("GROUP_WORLD_SIZE",),
    },
    place=_place,
    hosts=_hosts,
    fill=fill_from_step,
    context=(AGENT, "MASTER_ADDR", "MASTER_PORT"),
)
