"""The callback that makes every logged metric the metric over all ranks' samples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileMetrics

from hvdtrain.comm.messages import gather_json
from hvdtrain.errors import UsageError
from hvdtrain.keras.fit_progress import end_batches
from hvdtrain.keras.runtime import communicator
from hvdtrain.tensorflow.start import require_init

# Trainer._get_metrics_result_or_logs is what fit and evaluate call, once per epoch and per evaluation, to turn
# metric states into logs. Callbacks come after it: too late for the value that evaluate returns, and only in
# time for callbacks further down the list.
_SEAM = "_get_metrics_result_or_logs"


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs of each epoch, and results of evaluation, are those of one process that saw all ranks' samples.

    The metrics' states (totals and counts, confusion counts) are summed over ranks in float64 and the metric is
    computed from the sums: exact for shards of any sizes, where a mean of the ranks' means is not. All callbacks
    see the reduced values whatever their order, on every rank the same bits, in `logs` and `val_` logs; so
    does the return value of `evaluate(callbacks=[...])`; without this callback `evaluate` returns the values of the
    rank's own samples. The losses of a model's single outputs are means over samples too, where Keras by itself takes
    the mean over batches, at one rank as at many. The metric objects keep the rank's own state, and the
    progress bar shows the rank's own values until the epoch ends.

    Args:
        summable: your own `keras.metrics.Metric` classes whose variables are all sums over samples. Keras' own
            metrics are. A class that is not named here is refused, since the sum of, say, maxima is not a maximum.
        device: accepted, as in Horovod, and without effect.

    Raises:
        UsageError: for a metric of another class, for logs that a custom train_step or test_step computes without
            a metric, and if ranks have different metrics.
    """

    async_safe = True

    def __init__(self, summable: Sequence[type] | str = (), device: str = "") -> None:  # noqa: ARG002
        super().__init__()
        summable = () if isinstance(summable, str) else summable  # Horovod's first argument is the device
        require_init("hvd.callbacks.MetricAverageCallback")
        self._summable = tuple(summable)
        self._only_for_test = False

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        weigh_by_samples(self.model)
        _install(self.model, self._summable)

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        weigh_by_samples(self.model)
        if getattr(vars(self.model).get(_SEAM), "func", None) is not _logs_over_ranks:
            _install(self.model, self._summable)
            self._only_for_test = True

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._only_for_test:
            self._only_for_test = False
            self.model.__dict__.pop(_SEAM, None)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self.model.__dict__.pop(_SEAM, None)


def _logs_over_ranks(model: Any, summable: tuple[type, ...], logs: Any) -> dict[str, Any]:
    """For the model: reduced metrics for the keys of `logs`, which the last step returned. Collective."""
    end_batches(model)
    metrics = _leaves(model.metrics)
    _refuse_unsummable(metrics, summable)
    with _summed_states(metrics):
        results: dict[str, Any] = model.get_metrics_result()
    wanted = logs if isinstance(logs, dict) else {}
    without_metric = sorted(set(wanted) - set(results))
    if without_metric:
        raise UsageError(
            f"The step of {model.name} logs {', '.join(without_metric)}, which no metric of it holds.",
            "Such values are of this rank's last batch, and nothing says how to combine them over ranks.",
            "keep them in a keras.metrics.Mean that the model tracks, and log its result.",
        )
    # A rank without a batch has no logs of its own but still shares the others' results.
    return {name: results[name] for name in wanted} if wanted else results


def _install(model: Any, summable: tuple[type, ...]) -> None:
    if horovod.size() == 1:
        return
    if not callable(getattr(type(model), _SEAM, None)):
        raise UsageError(
            f"Keras {keras.__version__} has no {_SEAM}.",
            "MetricAverageCallback reduces metrics where Keras 3.10 to 3.15 read them.",
            "install one of those versions of Keras.",
        )
    # Not by setattr: Keras' attribute tracking would take it for a part of the model.
    vars(model)[_SEAM] = partial(_logs_over_ranks, model, summable)


def _leaves(metrics: Sequence[Any]) -> list[Any]:
    """Metrics with those that `compile(metrics=...)` holds in their container's place."""
    leaves: list[Any] = []
    for metric in metrics:
        leaves.extend(metric.metrics if isinstance(metric, CompileMetrics) else [metric])
    return leaves


def _refuse_unsummable(metrics: Sequence[Any], summable: tuple[type, ...]) -> None:
    for metric in metrics:
        kind = type(metric)
        if kind.__module__.split(".")[0] != "keras" and not isinstance(metric, summable):
            raise UsageError(
                f"The metric {metric.name!r} is of class {kind.__name__}, which is not Keras' own.",
                "Its state may not be a sum over samples, and then its sum over ranks means nothing.",
                f"if all its variables are sums, say so: MetricAverageCallback(summable=[{kind.__name__}]).",
            )


@contextmanager
def _summed_states(metrics: Sequence[Any]) -> Iterator[None]:
    """While open, the metrics' variables hold their sums over ranks."""
    variables = [variable for metric in metrics for variable in metric.variables]
    _agree(metrics)
    local = [np.asarray(variable.numpy()) for variable in variables]
    flat = np.concatenate([np.zeros(0), *(array.astype(np.float64).reshape(-1) for array in local)])
    total = communicator().allreduce(flat, "hvdtrain.keras.metric_callback")
    ends = np.cumsum([array.size for array in local])
    for variable, array, summed in zip(variables, local, np.split(total, ends[:-1]), strict=True):
        variable.assign(summed.reshape(array.shape).astype(array.dtype))
    try:
        yield
    finally:
        for variable, array in zip(variables, local, strict=True):
            variable.assign(array)


def _agree(metrics: Sequence[Any]) -> None:
    mine = [[metric.name, [list(variable.shape) for variable in metric.variables]] for metric in metrics]
    by_rank = gather_json(communicator(), mine, "hvdtrain.keras.metric_callback.agree")
    unlike = next((rank for rank, theirs in enumerate(by_rank) if theirs != by_rank[0]), None)
    if unlike is not None:
        theirs, first = (", ".join(str(name) for name, _ in by_rank[rank]) for rank in (unlike, 0))
        raise UsageError(
            f"Rank {unlike} has the metrics {theirs}, rank 0 has {first}.",
            "Only the same states can be summed.",
            "compile the same metrics on every rank, and give each rank a batch before the first evaluation.",
        )


def weigh_by_samples(model: Any) -> None:
    """Let the logged loss of each output be the mean over samples, as that of the whole model is.

    Keras 3 weights each batch's value by the batch size that it knows while the step is traced, which is mostly none. A
    mean of the batches' means comes out, which depends on how the samples are cut into batches.
    """
    loss = getattr(model, "_compile_loss", None)
    if loss is None or isinstance(vars(loss).get("call"), _CountingCall):
        return
    # Not by setattr: as in `hvdtrain.keras.optimizer`.
    vars(loss).update(call=_CountingCall(loss))
    for step in ("train", "test"):  # what is traced already has the old weights
        if getattr(model, f"{step}_function") is not None:
            getattr(model, f"make_{step}_function")(force=True)


class _CountingCall:
    """Replaces one compiled loss's `call`, and tells the metrics of single outputs how many samples there are."""

    def __init__(self, loss: Any) -> None:
        self._call, self._build = loss.call, loss.build
        self._samples: Any = None
        self._take_over(loss.metrics)
        vars(loss).update(build=partial(self._built, loss))

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self._samples = tf.shape(keras.tree.flatten(y_pred)[0])[0]
        return self._call(y_true, y_pred, sample_weight)

    def _built(self, loss: Any, y_true: Any, y_pred: Any) -> None:
        self._build(y_true, y_pred)  # which makes the metrics, in the first step
        self._take_over(loss.metrics)

    def _take_over(self, metrics: Any) -> None:
        for metric in metrics:
            vars(metric).update(update_state=partial(self._update, metric.update_state))

    def _update(self, update: Any, values: Any, sample_weight: Any = None) -> None:
        update(values, sample_weight=self._samples if sample_weight is None else sample_weight)
