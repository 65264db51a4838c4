"""`hvd.callbacks` for `model.fit(..., callbacks=[...])`: they keep ranks equal, and warm up the learning rate."""

from functools import partial
from typing import Any, NoReturn

import horovod.tensorflow as horovod
import keras

from hvdtrain.comm.messages import gather_json
from hvdtrain.errors import UsageError, missing_name
from hvdtrain.keras.fit_progress import FitProgress, agree_on_steps, trace_again
from hvdtrain.keras.last_callback import call_behind_callbacks
from hvdtrain.keras.metric_callback import MetricAverageCallback
from hvdtrain.keras.runtime import average_rank_local_weights, broadcast_model, communicator
from hvdtrain.keras.saving_callbacks import BestModelCheckpoint, refuse_shared_files
from hvdtrain.keras.schedule_callbacks import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    warmup_learning_rate,
)
from hvdtrain.keras.used_optimizers import UsedOptimizers
from hvdtrain.models.keras_normalization import normalization_constants
from hvdtrain.tensorflow.start import require_init

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "warmup_learning_rate",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Before the first step of each `fit`: root's optimizer state, then root's weights, on every rank.

    A model whose weights do not exist yet is built from the shapes of its first batch, so that already the first
    gradient is taken at equal weights. At the end of each epoch, and before its validation, weights that ranks
    update from their own samples (BatchNormalization's moving statistics) are averaged.

    A callback that sets `model.stop_training` on one rank, within an epoch or at its end, stops all ranks. After a stop
    at the end of an epoch, all ranks have the weights of the first one that was stopped, as EarlyStopping left them.

    Put it first in the list of callbacks: those after it then see equal models.

    It also switches XLA compilation of the step off (Keras' jit_compile="auto" means on with a GPU), since
    Horovod's operations do not run under XLA.

    Args:
        root_rank: the rank whose values all get.
        device: accepted, as in Horovod, and without effect.
        local_variables: one variable or several that stay each rank's own, such as those of local layers.

    A model may have several distributed optimizers, as attributes, where its own train_step applies each of them.

    Raises:
        UsageError: if the optimizer is not distributed, ranks disagree on epochs, steps or shapes, the model's training
            step applies no gradient through its optimizer, or callbacks leave ranks with other learning rates.
    """

    # Lets Keras go on calling other callbacks' batch ends in the background, as it would without this one.
    async_safe = True

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:  # noqa: ARG002
        super().__init__()
        require_init("hvd.callbacks.BroadcastGlobalVariablesCallback")
        self._local = [local_variables] if isinstance(local_variables, keras.Variable) else list(local_variables or ())
        if not 0 <= root_rank < horovod.size():
            raise UsageError(
                f"There is no rank {root_rank} to broadcast from.",
                f"Ranks are 0 to {horovod.size() - 1}.",
                "use root_rank=0.",
            )
        self.root_rank = root_rank
        self._epoch = 0
        self._sent = -1
        self._checked = False
        self._progress: FitProgress | None = None

    def set_model(self, model: Any) -> None:
        """Called by `fit` before it compiles its step."""
        super().set_model(model)
        self._optimizers = UsedOptimizers(model)
        if horovod.size() > 1:
            self._optimizers.require_distributed()
            if agree_on_steps(model) or model.jit_compile or self._optimizers.calls() == 0:
                model.jit_compile = False
                # A step that was traced before would run on, compiled by XLA or without the reduction.
                model.train_function = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._sent = -1
        self._checked = False
        refuse_shared_files()
        progress = self._progress = FitProgress(self.model)
        if horovod.size() > 1:
            end_fit = partial(self._take_weights_of_stopped_rank, progress)
            call_behind_callbacks(self.model, partial(self._end_callbacks, progress), end_fit)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch
        self._in_fit.begin_epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._in_fit.batch = batch
        if self._sent >= 0:
            self._check_first_step()
        else:
            self._begin()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._progress is not None:
            self._progress.begin_validation()
            average_rank_local_weights(self.model, self._local)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._in_fit.end_epoch()
        self._check_first_step()
        average_rank_local_weights(self.model, self._local)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._in_fit.end()
        self._progress, self._sent = None, -1

    def _end_callbacks(self, progress: FitProgress) -> None:
        progress.end_callbacks()
        self._optimizers.require_equal_rates()

    def _take_weights_of_stopped_rank(self, progress: FitProgress) -> None:
        """EarlyStopping may have restored the best weights there, and others on other ranks."""
        if progress.stopped_rank is not None:
            broadcast_model(self.model, progress.stopped_rank, (), self._local)

    @property
    def _in_fit(self) -> FitProgress:
        if self._progress is None:  # a list of callbacks that a loop of the user's calls in part
            self._progress = FitProgress(self.model)
        return self._progress

    def _begin(self) -> None:
        """Rank 0 alone may have a built model, which it has loaded: all ranks broadcast at the same place.

        Where that is in the step, callbacks behind this one change learning rates before it, and the momentum by what
        the rates were: so these are equal first.
        """
        mine = {"is built": _is_built(self.model), "rates": self._optimizers.learning_rates()}
        by_rank = gather_json(communicator(), mine, "hvdtrain.keras.begin")
        if all(answer["is built"] for answer in by_rank):
            self._synchronize()
            return
        self._optimizers.set_learning_rates(by_rank[self.root_rank]["rates"])
        self._synchronize_when_data_is_there()

    def _synchronize(self) -> None:
        self._optimizers.build()
        self._agree()
        broadcast_model(self.model, self.root_rank, self._optimizers.variables(), self._local)
        if normalization_constants(self.model):  # traced before, also on a rank that has adapted its layers meanwhile
            trace_again(self.model)
        self._sent = len(self.model.weights)

    def _synchronize_when_data_is_there(self) -> None:
        """Keras shows the batch to its train function only, so the first call builds and broadcasts."""
        step = self.model.train_function

        def first_step(iterator: Any) -> Any:
            self.model.train_function = step
            if not _is_built(self.model):
                _build_from(self.model, iterator.element_spec)
            self._synchronize()
            return self.model.train_function(iterator)

        self.model.train_function = first_step

    def _agree(self) -> None:
        shapes = [[list(v.shape), v.dtype] for v in [*self._optimizers.variables(), *self.model.weights]]
        mine = {
            "first epoch": self._epoch,
            "last epoch": self.params.get("epochs"),
            "steps per epoch": self.params.get("steps"),
            "shapes of variables": shapes,
        }
        by_rank = gather_json(communicator(), mine, "hvdtrain.keras.agree")
        for what in mine:
            values = [answer[what] for answer in by_rank]
            if all(value == values[0] for value in values):
                continue
            shown = values if what != "shapes of variables" else [f"{len(v)} variables" for v in values]
            raise UsageError(
                f"Ranks disagree on the {what}: {', '.join(f'rank {r}: {v}' for r, v in enumerate(shown))}.",
                "Every step needs every rank, so one of them would wait forever.",
                "give every rank the same initial_epoch; BackupAndRestore, which sets it, belongs on all ranks, with "
                "hvd.rank() in its path."
                if what == "first epoch"
                else "give every rank the same model, epochs, and number of batches (drop or repeat some, or set "
                "steps_per_epoch).",
            )

    def _check_first_step(self) -> None:
        if self._checked or horovod.size() == 1:
            return
        created = len(self.model.weights) - self._sent
        if created:
            raise UsageError(
                f"The first training step created {created} weights of {self.model.name}.",
                "They start with different values on each rank.",
                "build the model before fit: call it once on a batch of the right shape.",
            )
        self._optimizers.refuse_plain_updates()
        if self._optimizers.calls() == 0 and self.model.trainable_variables:
            raise UsageError(
                f"The training step of {self.model.name} does not call its optimizer's apply.",
                "No gradient was reduced, so every worker trains a model of its own.",
                "let train_step call self.optimizer.apply(gradients, self.trainable_variables).",
            )
        self._checked = True


def _is_built(model: Any) -> bool:
    calls_nothing = type(model).call is keras.Model.call
    return calls_nothing or (model.built and all(layer.built for layer in model.layers))


def _build_from(model: Any, element_spec: Any) -> None:
    """Create the weights by calling the model on symbols with the shapes of a batch, of any size."""
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    symbols = keras.tree.map_structure(lambda spec: keras.KerasTensor((None, *spec.shape[1:]), spec.dtype.name), inputs)
    model(symbols)


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.keras.callbacks", name, __all__)
