"""What a piece of a forward pass must not do twice when activation checkpointing repeats it in the backward pass.

Statistics over all ranks are such: a repetition would run the collectives again, and outside the batch's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, final

_Found = TypeVar("_Found")
_memory: ContextVar[ForwardMemory | None] = ContextVar("hvdtrain.forward_memory", default=None)


@final
class ForwardMemory:
    """What layers found in a piece of a forward pass, in their order. A repetition gets it again, in the same order."""

    def __init__(self) -> None:
        self._found: list[Any] = []
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
        self._repeated = iter(self._found)
        try:
            with self.recording():
                yield
        finally:
            self._repeated = None

    def next(self, find: Callable[[], Any]) -> Any:
        if self._repeated is not None:
            return next(self._repeated)
        self._found.append(find())
        return self._found[-1]


def remembered(find: Callable[[], _Found]) -> _Found:
    """What `find` returns, or what it returned in the forward pass that is being repeated."""
    memory = _memory.get()
    found: _Found = find() if memory is None else memory.next(find)
    return found
