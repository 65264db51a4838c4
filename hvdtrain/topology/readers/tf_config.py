"""TF_CONFIG: a TFJob's pods, and others that start one process per task of a TensorFlow cluster.

Its workers find each other by TensorFlow's own servers, which Horovod does not use. Format:
https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
"""

from __future__ import annotations

from hvdtrain.topology.facts import Env
from hvdtrain.topology.unjoined import Unjoined

_VARIABLE = "TF_CONFIG"


def _others(env: Env) -> str | None:
    if not env.get(_VARIABLE):
        return None
    import json  # every command imports this package

    try:
        config = json.loads(env[_VARIABLE])
        task = config.get("task") or {}
        kind, index = task.get("type", "a task"), task.get("index", 0)
        # A list of addresses, or addresses by index; a TFJob does not list its evaluator.
        counts = {"evaluator": int(kind == "evaluator")}
        counts |= {name: len(addresses) for name, addresses in (config.get("cluster") or {}).items()}
    except (ValueError, TypeError, AttributeError):
        return f"{_VARIABLE} is not the JSON of a cluster and a task."
    count = sum(counts.values())
    return f"{_VARIABLE} makes this process {kind} {index} of a cluster of {count} processes." if count > 1 else None


UNJOINED = Unjoined(
    _VARIABLE,
    (_VARIABLE,),
    _others,
    "start the job once, by `hvdtrain launch ssh -H host1:4,host2:4 -- train ...` or `hvdtrain launch kubernetes`",
)
