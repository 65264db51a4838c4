"""Platforms whose variables show other processes, but not this one's rank: refused, never "rank 0 of 1".

Cray's PALS (`mpiexec`) and ALPS (`aprun`) without PMI tell a rank, and by no variable the size. PALS passes on
PALS_RANKID, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE and PALS_NODEID (its pals.h). PALS_NRANKS, which may be there, is what
`mpiexec` was told by default, and not what it started. By default both set PMI's variables, which come first.

TF_CONFIG is set for a TFJob's pods, and by others that start one process per task of a TensorFlow cluster. Its workers
find each other by TensorFlow's own servers, which Horovod does not use. Format:
https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Env

ALONE = "to train in this process alone, set HOROVOD_RANK=0 and HOROVOD_SIZE=1"
"""The end of a HINT: these two are asked first, so that they decide wherever they are set."""


@dataclass(frozen=True)
class Unjoined:
    """Used like a `Reader`, but refuses to read: `others` is one sentence on the other processes, or None where the
    variables tell of none, and `hint` says how to start the job instead."""

    platform: str
    variables: tuple[str, ...]
    others: Callable[[Env], str | None]
    hint: str

    def seen(self, env: Env) -> dict[str, str]:
        return {name: env[name] for name in self.variables if name in env}

    def applies(self, env: Env) -> bool:
        """Whether the variables show other processes."""
        return self.others(env) is not None

    def outside(self, env: Env) -> str | None:
        """Why the variables do not describe this process although they are set, or None when they do."""
        return None if self.applies(env) else "they tell of no other process"

    def read(self, env: Env) -> NoReturn:
        conflict = "Each of these processes would train a model of its own."
        raise UsageError(str(self.others(env)), conflict, f"{self.hint}; {ALONE}.")


_CRAY_HINT = "start it so that PMI_RANK and PMI_SIZE are set{}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


def _numbered(variable: str) -> Callable[[Env], str | None]:
    def others(env: Env) -> str | None:
        if variable not in env:
            return None
        return f"{variable}={env[variable]} numbers this process among others, but no variable tells how many."

    return others


PALS = Unjoined(
    "Cray PALS",
    ("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID"),
    _numbered("PALS_RANKID"),
    _CRAY_HINT.format(" (`mpiexec --pmi cray`)"),
)
ALPS = Unjoined("Cray ALPS", ("ALPS_APP_PE",), _numbered("ALPS_APP_PE"), _CRAY_HINT.format(""))

_TF_CONFIG = "TF_CONFIG"


def _others_of_tf_config(env: Env) -> str | None:
    if not env.get(_TF_CONFIG):
        return None
    import json  # every command imports this package

    try:
        config = json.loads(env[_TF_CONFIG])
        task = config.get("task") or {}
        kind, index = task.get("type", "a task"), task.get("index", 0)
        # A list of addresses, or addresses by index; a TFJob does not list its evaluator.
        counts = {"evaluator": int(kind == "evaluator")}
        counts |= {name: len(addresses) for name, addresses in (config.get("cluster") or {}).items()}
    except (ValueError, TypeError, AttributeError):
        return f"{_TF_CONFIG} is not the JSON of a cluster and a task."
    count = sum(counts.values())
    return f"{_TF_CONFIG} makes this process {kind} {index} of a cluster of {count} processes." if count > 1 else None


TF_CONFIG = Unjoined(
    _TF_CONFIG,
    (_TF_CONFIG,),
    _others_of_tf_config,
    "start the job once, by `hvdtrain launch ssh -H host1:4,host2:4 -- train ...` or `hvdtrain launch kubernetes`",
)
