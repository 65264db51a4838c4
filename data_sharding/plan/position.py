"""Where in a plan a training is, as what can be saved: one position for all ranks, whatever their number."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.plan.shard_plan import ShardPlan

State = dict[str, Any]
"""epoch, samples_seen and fingerprint: what JSON can hold."""


def state_at(plan: ShardPlan, step: int) -> State:
    """The position at which a step begins: epoch, samples_seen (step * G) and fingerprint of the plan.

    Raises PlanError: the step is outside [0, steps].
    """
    position = whole("start_step", step) * plan.global_batch
    plan.step_at(position)
    return {"epoch": plan.epoch, "samples_seen": position, "fingerprint": plan.fingerprint}


def plan_at(plan: ShardPlan, state: Mapping[str, Any]) -> tuple[ShardPlan, int]:
    """The plan of a saved position's epoch, and its step.

    Raises PlanError: the state is of other data or of another plan, or is none.
    """
    if not isinstance(state, Mapping):
        raise PlanError(
            f"The state to load is an object of type {type(state).__name__}.",
            "A position has epoch, samples_seen and fingerprint.",
            "load what state_dict() returned; text of JSON is to be parsed first.",
        )
    try:
        epoch, position, fingerprint = (state[name] for name in ("epoch", "samples_seen", "fingerprint"))
    except KeyError as error:
        fact = f"The state to load has no {error}."
        conflict = "A position needs epoch, samples_seen and fingerprint."
        raise PlanError(fact, conflict, "load what state_dict() returned.") from error
    if fingerprint != plan.fingerprint:
        raise PlanError(
            "The state to load was saved for another plan.",
            "Its position means other records here.",
            "use the data, global batch, seed, shuffle and tail that it was saved with.",
        )
    loaded = dataclasses.replace(plan, epoch=epoch)
    return loaded, loaded.step_at(position)
