"""The first batch of a training: what only shows there, and is said before the first step."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from data_sharding import LoadedBatch, PlanError, UnlikeItemsError
from hvdtrain.errors import UsageError


@contextmanager
def _before_training() -> Iterator[None]:
    """What shows in the first batch that items or a `decode` are not as they must be is wrong usage: UsageError."""
    try:
        yield
    except (PlanError, UnlikeItemsError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(error.fact, error.conflict, error.hint) from error


class WatchedLoader(AbstractContextManager["WatchedLoader"]):
    """A loader whose first batch is shown to all `looks`; otherwise as it is."""

    def __init__(self, loader: Any, *looks: Callable[[LoadedBatch], None]) -> None:
        self._loader, self._looks = loader, looks

    def __enter__(self) -> "WatchedLoader":
        self._loader.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._loader.__exit__(*error)

    def __iter__(self) -> Iterator[LoadedBatch]:
        batches = iter(self._loader)
        with _before_training():
            first = next(batches, None)
            if first is None:
                return
        looks, self._looks = self._looks, ()
        for look in looks:
            look(first)
        yield first
        yield from batches

    def abandon(self) -> None:
        self._loader.abandon()
