"""Every public name of Horovod's modules for TensorFlow and Keras is in ours, or is refused in words."""

from __future__ import annotations

import json
import sys

import pytest
from support.processes import run_command

LISTED = """
import importlib, json, types
def public(name):
    module = importlib.import_module(name)
    if hasattr(module, "__all__"):
        return set(module.__all__)
    names = vars(module).items()
    is_public = lambda n: n == "_basics" or not n.startswith("_")  # scripts ask it for process sets
    return {n for n, v in names if is_public(n) and not (isinstance(v, types.ModuleType) and n not in KEPT)}
KEPT = {"callbacks", "elastic"}
pairs = [("horovod.tensorflow", "hvdtrain.tensorflow"), ("horovod.keras", "hvdtrain.keras"),
         ("horovod.tensorflow.keras", "hvdtrain.keras"), ("horovod.tensorflow.elastic", "hvdtrain.tensorflow.elastic"),
         ("horovod.tensorflow.compression", "hvdtrain.tensorflow.compression"),
         ("horovod.tensorflow.functions", "hvdtrain.tensorflow.functions"),
         ("horovod.tensorflow.mpi_ops", "hvdtrain.tensorflow.mpi_ops"),
         ("horovod.keras.elastic", "hvdtrain.keras.elastic"), ("horovod.keras.callbacks", "hvdtrain.keras.callbacks")]
print(json.dumps({a: sorted(n for n in public(a) if not hasattr(importlib.import_module(b), n)) for a, b in pairs}))
import hvdtrain.keras, hvdtrain.tensorflow
from hvdtrain.errors import UsageError
refused = []
old = hvdtrain.tensorflow
for call in (lambda: old.broadcast_global_variables(0), lambda: hvdtrain.keras.broadcast_global_variables(0),
             old.BroadcastGlobalVariablesHook, old.LocalGradientAggregationHelper,
             lambda: hvdtrain.keras.callbacks.MetricAverage, lambda: hvdtrain.keras.elastic.Keras,
             lambda: old.elastic.State):
    try:
        call()
    except UsageError as error:
        refused.append("HINT: " in str(error))
print(json.dumps(refused))
"""
FOR_THEMSELVES = {
    *("run_fn", "ObjectState", "HorovodInternalError", "is_version_greater_equal_than", "check_installed_version"),
    *("get_average_backwards_compatibility_fun", "get_ext_suffix", "num_rank_is_power_2"),
}
"""What Horovod's modules import for themselves."""
OF_FUNCTIONS = {"ProcessSet", "allgather", "broadcast", "broadcast_", "global_process_set", "rank", "size"}


@pytest.mark.timeout(300)
def test_names_are_there_or_refused() -> None:
    finished = run_command([sys.executable, "-c", LISTED], 250, {"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert finished.returncode == 0, finished.tail()
    missing, refused = (json.loads(line) for line in finished.stdout.splitlines()[-2:])
    assert {
        module: sorted(set(names) - FOR_THEMSELVES - (OF_FUNCTIONS if module.endswith("functions") else set()))
        for module, names in missing.items()
    } == dict.fromkeys(missing, [])
    assert refused == [True] * 7
