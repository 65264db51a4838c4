"""What a model predicts, where its task does not say: the output that its measure() computes the loss from."""

from collections.abc import Callable
from typing import Any

from hvdtrain.errors import UsageError


class RecordedModel:
    """A model of any framework that keeps what it has returned. Its parts and attributes are those of the model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._outputs: list[Any] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        output = self._model(*inputs, **options)
        self._outputs.append(output)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def output(self, task_name: str) -> Any:
        """What its only call has returned. Raises UsageError: it was not called once, but never or several times."""
        if len(self._outputs) != 1:
            raise UsageError(
                f"{task_name}.measure() calls the model {len(self._outputs)} times.",
                "It is not known which of its outputs is the prediction.",
                f"write {task_name}.predict(model, batch), which returns a dict of tensors with one row a sample.",
            )
        return self._outputs[0]


def check_predictions(predictions: Any, samples: int, task_name: str, is_tensor: Callable[[Any], bool]) -> None:
    """Raise UsageError unless `predictions` is what `Task.predict` promises for `samples` samples, in tensors of its
    framework."""
    if not isinstance(predictions, dict) or not predictions:
        raise _wrong(task_name, f"an object of type {type(predictions).__name__} that names no values", samples)
    for name, value in predictions.items():
        if not isinstance(name, str) or not is_tensor(value):
            raise _wrong(task_name, f"{name!r}, an object of type {type(value).__name__}", samples)
        if tuple(value.shape[:1]) != (samples,):
            raise _wrong(task_name, f"{name!r} of shape {tuple(value.shape)}", samples)


def _wrong(task_name: str, what: str, samples: int) -> UsageError:
    return UsageError(
        f"What {task_name} predicts is {what}, for {samples} samples.",
        "Each prediction belongs to one record.",
        f"let {task_name}.predict(model, batch) return a dict of tensors whose first axis has {samples} rows.",
    )
