"""Tasks of a Slurm job step, `srun …`.

The batch script of an `sbatch` has SLURM_PROCID=0 and SLURM_NTASKS too, and a shell of `salloc` has SLURM_NTASKS, yet
neither is a task: what tells a task is SLURM_STEP_ID. Its largest values mark steps without tasks of ours (batch,
extern, interactive). Inside a step, SLURM_NTASKS may still be the job's; SLURM_STEP_NUM_TASKS is the step's.

Known limit: `sbatch` called from inside a step passes that step's variables on to the new batch script, which then
looks like task 0 of that step; unset SLURM_STEP_ID there.
"""

from hvdtrain.topology.facts import Env, Fact, Facts, assume_place, read_table
from hvdtrain.topology.nodelist import expand_node_list, expand_tasks_per_node
from hvdtrain.topology.reader import Reader

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""slurm.h: SLURM_INTERACTIVE_STEP 0xfffffffa, SLURM_BATCH_SCRIPT 0xfffffffb, SLURM_EXTERN_CONT 0xfffffffc, and room."""

TABLE = {
    "rank": ("SLURM_PROCID",),
    "size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    "local_rank": ("SLURM_LOCALID",),
    "node_rank": ("SLURM_NODEID",),
    "num_nodes": ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
}
STEP_ID = ("SLURM_STEP_ID", "SLURM_STEPID")
TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
NODE_LIST = ("SLURM_STEP_NODELIST", "SLURM_NODELIST")


def fill_from_step(facts: Facts, env: Env) -> Facts:
    """Add what the Slurm step tells, if this is a task of one whose rank and size are those of `facts`."""
    return {**_step_facts(env), **facts} if _is_same_process(facts, env) else facts


def hosts_of_step(facts: Facts, env: Env) -> tuple[str, ...]:
    """Host names of the Slurm step, if this is a task of one of the same rank, size and node rank."""
    if not _is_same_process(facts, env):
        return ()
    step = _step_facts(env)
    same_place = all(name in step and step[name].value == facts[name].value for name in ("node_rank", "num_nodes"))
    return _hosts(facts, env) if same_place else ()


def _is_same_process(facts: Facts, env: Env) -> bool:
    if _outside(env) is not None:
        return False
    step = read_table(TABLE, env)
    shared = [name for name in ("rank", "size") if name in facts]
    return bool(shared) and all(name in step and step[name].value == facts[name].value for name in shared)


def _outside(env: Env) -> str | None:
    """Why this is not a task of a step, or None if it is one."""
    step = next((env[name] for name in STEP_ID if name in env), None)
    if step is None:
        return "SLURM_STEP_ID is not set: a batch script or the shell of an allocation, not a task that srun started"
    if step.isascii() and step.isdigit() and int(step) >= FIRST_SPECIAL_STEP:
        return f"SLURM_STEP_ID={step} is the batch script's, an extern or an interactive step, not one of tasks"
    return None


def _step_facts(env: Env) -> Facts:
    facts = read_table(TABLE, env)
    local_size = _local_size(facts, env)
    return {**facts, "local_size": local_size} if local_size else facts


def _local_size(facts: Facts, env: Env) -> Fact | None:
    """This node's entry in the first list of tasks per node that fits the step."""
    if not {"node_rank", "num_nodes", "size"} <= facts.keys():
        return None
    node, nodes, size = (facts[name].value for name in ("node_rank", "num_nodes", "size"))
    for variable in (name for name in TASKS_PER_NODE if name in env):
        counts = expand_tasks_per_node(env[variable], variable)
        if len(counts) == nodes and sum(counts) == size and node < nodes:
            return Fact(counts[node], f"{variable}={env[variable]}, entry {node}")
    return None


def _hosts(facts: Facts, env: Env) -> tuple[str, ...]:
    for variable in (name for name in NODE_LIST if name in env):
        hosts = expand_node_list(env[variable], variable)
        if len(hosts) == facts["num_nodes"].value:
            return hosts
    return ()


READER = Reader(
    platform="Slurm",
    launcher="slurm",
    table=TABLE,
    place=lambda facts, env: assume_place({**_step_facts(env), **facts}),
    hosts=_hosts,
    outside=_outside,
    context=("SLURM_JOB_ID", "SLURM_STEP_ID", *TASKS_PER_NODE, *NODE_LIST),
)
