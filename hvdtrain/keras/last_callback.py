"""A place behind all callbacks of a `fit`: what they have decided at the end of an epoch is known there."""

from collections.abc import Callable
from typing import Any


def call_behind_callbacks(model: Any, end_epoch: Callable[[], None], end_fit: Callable[[], None]) -> None:
    """Call these at the end of each epoch and of the fit, when all callbacks have been called.

    Keras itself puts its History last in the list of callbacks, unless the user's list has one, and reads
    `model.stop_training` after it.

    Args: `model`: whose `fit` begins.
    """
    history = getattr(model, "history", None)
    if history is None:  # a loop of the user's, which calls callbacks itself
        return
    kind = type(history)

    def on_epoch_end(epoch: int, logs: Any = None) -> None:
        kind.on_epoch_end(history, epoch, logs)
        end_epoch()

    def on_train_end(logs: Any = None) -> None:
        for name in ("on_epoch_end", "on_train_end"):
            vars(history).pop(name, None)
        kind.on_train_end(history, logs)
        end_fit()

    vars(history).update(on_epoch_end=on_epoch_end, on_train_end=on_train_end)
