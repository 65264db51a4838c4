"""horovodrun --gloo, elastic too; `horovodrun --mpi` sets none of these and is seen as Open MPI.

Horovod's cross rank and size count the nodes that have a process of the same local rank. So they count all nodes for
local rank 0, and for the others only when no node has fewer processes. Variables: horovod/runner/gloo_run.py,
`create_slot_env_vars`. In an elastic job they hold for the start; later resets are known to `hvd` alone.
"""

from hvdtrain.topology.facts import ASSUMED, Env, Fact, Facts, assume_local, assume_nodes
from hvdtrain.topology.launcher_variables import LAUNCHER_VARIABLE
from hvdtrain.topology.reader import Reader, four_facts, host_by


def _place(facts: Facts, _env: Env) -> Facts:
    facts = assume_local(facts)
    if facts["local_rank"].value == 0 and not facts["local_rank"].is_assumed:
        return assume_nodes(facts)
    size, local_size = facts["size"].value, facts["local_size"].value
    nodes = {name: facts[name] for name in ("node_rank", "num_nodes") if name in facts}
    others = {name: fact for name, fact in facts.items() if name not in nodes}
    if local_size == size or len(nodes) < 2 or local_size * nodes["num_nodes"].value != size:
        return assume_nodes(others)
    even = "every node has the same number of processes"
    return {**others, **{name: Fact(fact.value, f"{ASSUMED}{fact.source}, and {even}") for name, fact in nodes.items()}}


READER = Reader(
    platform="Horovod",
    launcher="horovodrun",
    table={
        **four_facts("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        "node_rank": ("HOROVOD_CROSS_RANK",),
        "num_nodes": ("HOROVOD_CROSS_SIZE",),
    },
    place=_place,
    hosts=host_by("HOROVOD_HOSTNAME"),
    context=("HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER", "HOROVOD_ELASTIC", LAUNCHER_VARIABLE),
    named_by=LAUNCHER_VARIABLE,
)
