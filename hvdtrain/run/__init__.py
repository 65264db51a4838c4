"""One training run: what all commands share whose processes are ranks of a job. Called, it is `hvdtrain.run`.

    hvdtrain.run(function, np=2)

A function of that name, which `horovod.run` has, and this package would hide each other in `hvdtrain`, whichever of
them was imported last. So the package itself can be called.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from hvdtrain.end_signals import interrupts_afterwards


class _Called(ModuleType):
    @property
    def __signature__(self) -> Signature:
        """What `inspect`, editors and notebooks show."""
        return signature(import_module("hvdtrain.cli.python_calls.function_call").run)

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As `hvdtrain.cli.python_calls.function_call.run`, which is above this package and imported when called."""
        with interrupts_afterwards():
            module = import_module("hvdtrain.cli.python_calls.function_call")
        results: list[Any] = module.run(*args, **kwargs)
        return results

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """By its name, as other modules: cloudpickle sends it with functions that name any `run`, as subprocess's."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Called
