"""What a layer that computes statistics has to know about the forward pass that it is part of.

Which rows of the micro batch are real; and whether activation checkpointing repeats the forward pass in the backward
pass. A repetition must not compute statistics over all ranks again: it would run their collectives twice, and without
the mask.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from hvdtrain.errors import UsageError

T = TypeVar("T")
_mask: ContextVar[Any] = ContextVar("hvdtrain.batch_mask", default=None)
_memory: ContextVar["ForwardMemory | None"] = ContextVar("hvdtrain.forward_memory", default=None)


class batch_mask(AbstractContextManager[None]):  # noqa: N801  read as a function
    """Run the model (or trace it) on a micro batch some of whose records only fill a step, or are damaged.

    Args: `real`: bool [n], a tensor on the model's device or of the graph that is being traced; None where all n rows
    are real, which spares layers some work. Each rank may choose None by its own rows.
    """

    def __init__(self, real: Any) -> None:
        self._real = real

    def __enter__(self) -> None:
        self._token = _mask.set(self._real)

    def __exit__(self, *_: object) -> None:
        _mask.reset(self._token)


def real_mask() -> Any:
    """What `batch_mask` was given."""
    return _mask.get()


class ForwardMemory:
    """What layers computed in a part of a forward pass, in their order. A repetition gets it again, in that order."""

    def __init__(self) -> None:
        self._computed: list[Any] = []
        self._repeated: Iterator[Any] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        token = _memory.set(self)
        try:
            yield
        finally:
            _memory.reset(token)

    @contextmanager
    def repeating(self) -> Iterator[None]:
        self._repeated = iter(self._computed)
        try:
            with self.recording():
                yield
        finally:
            self._repeated = None

    def next(self, compute: Callable[[], Any]) -> Any:
        if self._repeated is not None:
            return next(self._repeated)
        self._computed.append(compute())
        return self._computed[-1]


def remembered(compute: Callable[[], T]) -> T:
    """What `compute` returns, or what it returned in the forward pass that is being repeated."""
    memory = _memory.get()
    result: T = compute() if memory is None else memory.next(compute)
    return result


def no_batch_norm(model: str) -> UsageError:
    """The error for a model, by its class, whose BatchNorm layers are to be synchronized and that has none."""
    return UsageError(
        f"--sync-batch-norm is given for {model}, which has no BatchNorm.", "It would change nothing.", "leave it out."
    )
