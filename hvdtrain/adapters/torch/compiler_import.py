"""A training that compiles nothing does not import torch's compiler: that would take 1.6 s of a start of 3.6 s.

torch keeps its compiler (torch._dynamo) away from some methods of optimizers, and breaks a compiled graph at their
steps. For that it imports the compiler when they are first called, also where nothing is compiled
(`torch._compile._disable_dynamo` and `torch.optim.optimizer._use_grad_for_differentiable` of torch 2.13).
"""

import functools
import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch

_COMPILER: Final = "torch._dynamo"
_KEPT: Final = "__dynamo_disable"  # the attribute in which torch keeps what it calls instead of the method


@functools.cache
def spare_compiler_import() -> None:
    """Let methods of torch's optimizers run as they are, until something else has imported the compiler.

    Where torch has other code than is known here, that is left as it is.
    """
    for method in vars(torch.optim.Optimizer).values():
        if isinstance(method, FunctionType) and method.__globals__["__name__"] == "torch._compile":
            plain = method.__wrapped__  # type: ignore[attr-defined]
            if not hasattr(plain, _KEPT):
                setattr(plain, _KEPT, _without_compiler(plain))
    for kind in vars(torch.optim).values():
        step = getattr(kind, "__dict__", {}).get("step")
        if isinstance(kind, type) and getattr(step, "__name__", "") == "step" and _breaks_graphs(step):
            kind.step = _light_step(step)  # type: ignore[attr-defined]


def _without_compiler(plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        disabled = importlib.import_module(_COMPILER).disable(plain, True, wrapping=False)
        setattr(plain, _KEPT, disabled)
        return disabled(*args, **kwargs)

    return call


def _breaks_graphs(step: Any) -> bool:
    code = getattr(step, "__code__", None)
    return code is not None and code.co_name == "_use_grad" and hasattr(step, "__wrapped__")


def _light_step(step: Any) -> Any:
    plain = step.__wrapped__

    @functools.wraps(step)
    def light(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return light
