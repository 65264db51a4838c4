"""Names of TensorFlow 1's sessions and hooks, which say what to use instead."""

from typing import Any, NoReturn

from hvdtrain.errors import UsageError


class _Refusing:
    """Called or constructed, it raises `UsageError`."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __call__(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise UsageError(
            f"{self._name} belongs to TensorFlow 1, to its sessions and collections of variables.",
            "TensorFlow 2 has neither, and it would send nothing.",
            self._instead,
        )


BroadcastGlobalVariablesHook = _Refusing(
    "hvd.BroadcastGlobalVariablesHook",
    "call hvd.broadcast_variables(model.variables, root_rank=0) after the first step.",
)
broadcast_global_variables = _Refusing(
    "hvd.broadcast_global_variables", "call hvd.broadcast_variables(model.variables, root_rank=0)."
)
DistributedOptimizer = _Refusing(
    "hvd.DistributedOptimizer of horovod.tensorflow",
    "reduce gradients with hvd.DistributedGradientTape; for model.fit, use hvdtrain.keras.DistributedOptimizer.",
)
