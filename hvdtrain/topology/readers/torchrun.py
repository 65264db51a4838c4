"""torchrun, and everything else that sets RANK and WORLD_SIZE: accelerate, Kubeflow's PyTorchJob, a line of shell.

One agent per node, so GROUP_RANK and GROUP_WORLD_SIZE are node rank and number of nodes. Those who export RANK and
WORLD_SIZE from Slurm's variables often leave out the rest: an agreeing Slurm step tells it. Variables:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Env, Facts, assume_place
from hvdtrain.topology.reader import Reader, four_facts
from hvdtrain.topology.readers.slurm import fill_from_step, hosts_of_step
from hvdtrain.topology.readers.unjoined import ALONE, Unjoined

AGENT = "TORCHELASTIC_RUN_ID"  # set by a torchrun agent for its workers, and by nobody else
PER_NODE = ("NPROC_PER_NODE", "PET_NPROC_PER_NODE")
"""How many processes torchrun is to start on each node: its PET_ variables are its flags."""


def _hosts(facts: Facts, env: Env) -> tuple[str, ...]:
    # Agents number themselves in the order in which they met, which need not be that of Slurm's node list.
    return () if AGENT in env else hosts_of_step(facts, env)


def _place(facts: Facts, env: Env) -> Facts:
    if "local_rank" not in facts and "local_size" not in facts:
        _require_processes(facts, env)
    return assume_place(facts)


def _require_processes(facts: Facts, env: Env) -> None:
    """Raise UsageError where RANK and WORLD_SIZE count nodes, as a PyTorchJob's may."""
    variable = next((name for name in PER_NODE if _is_several(env.get(name, ""))), None)
    if variable is not None:
        rank, size = facts["rank"], facts["size"]
        flags = f"--nnodes {size.value} --node-rank {rank.value} --nproc-per-node {env[variable]}"
        raise UsageError(
            f"{rank.source} and {size.source} stand beside {variable}={env[variable]}, without a LOCAL_RANK.",
            f"They count nodes, and one process of each node would train instead of {env[variable]}.",
            f"start it on each node with `torchrun {flags} --master-addr ... -m hvdtrain`; if they count processes, "
            f"set LOCAL_RANK; {ALONE}.",
        )


def _is_several(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 1


def _others(env: Env) -> str | None:
    nodes, node, per_node = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
    several = env.get(nodes, "") not in ("", "1", "1:1") or env.get(node, "") not in ("", "0")
    if not several and not _is_several(env.get(per_node, "")):
        return None
    settings = ", ".join(f"{name}={env[name]}" for name in (nodes, node, per_node) if name in env)
    return f"{settings} describe several processes, and torchrun did not start this one."


READER = Reader(
    platform="torchrun",
    launcher="torchrun",
    table={
        **four_facts("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        "node_rank": ("GROUP_RANK",),
        "num_nodes": ("GROUP_WORLD_SIZE",),
    },
    place=_place,
    hosts=_hosts,
    fill=fill_from_step,
    context=(AGENT, "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE"),
)
SETTINGS = Unjoined(
    "torchrun's settings",
    ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    _others,
    "start it with `torchrun -m hvdtrain`, which reads them",
)
"""A pod of Kubeflow's Trainer, which gives torchrun its flags, in a process that torchrun did not start."""
