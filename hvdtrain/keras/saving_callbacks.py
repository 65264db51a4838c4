"""Callbacks that write files: one rank does, or each has a file of its own."""

import inspect
import os
from typing import Any, Final

import horovod.tensorflow as horovod
import keras

from hvdtrain.comm.messages import gather_json
from hvdtrain.errors import UsageError
from hvdtrain.keras.runtime import communicator

_PATH_OF: Final = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.BackupAndRestore: "backup_dir",
    keras.callbacks.CSVLogger: "filename",
}


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`keras.callbacks.ModelCheckpoint` with `save_best_only`, on rank 0 alone: give it to `fit` on every rank.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: ModelCheckpoint's.
        filepath: where to save; None: best.keras, or best.weights.h5 with `save_weights_only`, whose names end so. In
            Horovod an attribute that is set later, which works here, too.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
    ) -> None:
        filepath = filepath or ("best.weights.h5" if save_weights_only else "best.keras")
        options = {"mode": mode, "save_freq": save_freq, "save_weights_only": save_weights_only}
        super().__init__(filepath, monitor=monitor, verbose=verbose, save_best_only=True, **options)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if horovod.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if horovod.rank() == 0:
            super().on_epoch_end(epoch, logs)


def refuse_shared_files() -> None:
    """Raise `UsageError` if callbacks of the `fit` that is beginning write one path on several ranks. Collective."""
    mine = {
        os.path.abspath(getattr(callback, _PATH_OF[kind])): type(callback).__name__ for callback, kind in _writers()
    }
    by_rank = gather_json(communicator(), mine, "hvdtrain.keras.written_files")
    for path in sorted(set().union(*by_rank)):
        ranks = [rank for rank, theirs in enumerate(by_rank) if path in theirs]
        if len(ranks) > 1:
            name = by_rank[ranks[0]][path]
            alone = "" if name == "BackupAndRestore" else "give it to fit on rank 0 only (if hvd.rank() == 0), or "
            raise UsageError(
                f"The callback {name} of ranks {', '.join(map(str, ranks))} writes {path}.",
                "Ranks that write one file at the same time destroy it.",
                f"{alone}put hvd.rank() into the path.",
            )


def _writers() -> list[tuple[Any, type]]:
    found = [(callback, kind) for callback in _callbacks_of_fit() for kind in _PATH_OF if isinstance(callback, kind)]
    return [(callback, kind) for callback, kind in found if not isinstance(callback, BestModelCheckpoint)]


def _callbacks_of_fit() -> list[Any]:
    """Keras shows no callback the others: they are in the list that calls this one."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return list(caller.callbacks)
        frame = frame.f_back
    return []
