"""Our errors, raised while TensorFlow traces a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hvdtrain.errors import HvdtrainError


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise them as they were: AutoGraph makes errors of its own of all exceptions that it does not know."""
    try:
        yield
    except Exception as error:
        original = error.__context__
        if isinstance(original, HvdtrainError):
            raise original from None
        raise
