"""What `torch.compile` leaves as it is, in a training step that it compiles."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch._compile import _disable_dynamo

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def not_compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which runs as it is where it is called by compiled code; that goes on behind it.

    As torch has it for parts of its own: `torch.compiler.disable` would import the compiler here and now, and a start
    would take a second longer.
    """
    return _disable_dynamo(function)
