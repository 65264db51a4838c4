"""A training that compiles nothing does not import torch's compiler: that would take 1.6 s of a start of 3.6 s.

torch keeps its compiler (torch._dynamo) away from some methods of optimizers, and breaks a compiled graph at their
steps. For that it imports the compiler when they are first called, also where nothing is compiled
(`torch._compile._disable_dynamo` and `torch.optim.optimizer._use_grad_for_differentiable` of torch 2.13). And
`torch.use_deterministic_algorithms` imports it to set an option of the compiler's.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch

_COMPILER: Final = "torch._dynamo"
_INDUCTOR: Final = "torch._inductor"
_INDUCTOR_VARIABLE: Final = "TORCHINDUCTOR_DETERMINISTIC"  # which it reads when it is imported
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


def use_deterministic_algorithms(deterministic: bool) -> None:
    """As torch's function; a compiler that is imported later takes the option from the environment."""
    if _INDUCTOR in sys.modules or not _inductor_reads_variable():
        torch.use_deterministic_algorithms(deterministic)
        return
    os.environ[_INDUCTOR_VARIABLE] = str(int(deterministic))
    torch._C._set_deterministic_algorithms(deterministic, warn_only=False)


def _inductor_reads_variable() -> bool:
    options = Path(torch.__file__).parent / "_inductor" / "config.py"
    return options.exists() and _INDUCTOR_VARIABLE in options.read_text()


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
