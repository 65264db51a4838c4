"""`--parallel auto`: at the start, the way to train that `hvdtrain plan` recommends for these workers is chosen."""

from dataclasses import asdict
from typing import Final

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.comm.open import form_stages
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.plan.candidates import NEEDS_LESS, needs_least
from hvdtrain.plan.check_predictions import config_of
from hvdtrain.plan.cluster_simulation import Disturbances
from hvdtrain.plan.cost_model import Layout
from hvdtrain.plan.make import PlanRequest, make_plan, timed_parallel
from hvdtrain.plan.measured_workload import undivided
from hvdtrain.run.prepare import prepare
from hvdtrain.task.task import Task
from hvdtrain.units import in_bytes

__all__ = ["chosen", "timed_parallel"]

_SECONDS: Final = 2.0


def chosen(config: TrainConfig, kind: type[Task], comm: Communicator) -> TrainConfig:
    """The config of the recommended way. Collective, on a communicator that was opened for `timed_parallel`.

    Raises:
        UsageError: on all ranks: no way fits into the memory of a worker.
    """
    workers = comm.topology.size
    setup = prepare(undivided(config), kind, comm)
    request = PlanRequest((workers,), _SECONDS, False, None, None, None, (), Disturbances())
    plan = make_plan(setup, config, kind, comm, request)
    best = plan.recommended[workers]
    told = [needs_least(plan.ways[workers]), None] if best is None else [best.name, asdict(best.layout)]
    name, fields = broadcast_json(comm, told, "hvdtrain.plan.chosen")
    if fields is None:
        raise UsageError(
            f"No way to train fits into {in_bytes(plan.cluster.memory)}, which each of {workers} workers has left.",
            f"{name}.",
            f"{NEEDS_LESS} need less; `hvdtrain plan --workers …` says how much.",
        ).on_all_ranks()
    layout = Layout(**{**fields, "cuts": tuple(fields["cuts"])})
    if comm.topology.is_root:
        print(f"hvdtrain: --parallel auto: {name} ({workers} workers)", flush=True)
    found = config_of(layout, config)
    form_stages(kind.framework, comm, found.parallel)
    return found
