"""A task's callback with --virtual-workers: it must leave the model's buffers as they are."""

from dataclasses import dataclass

from hvdtrain.adapters.adapter_protocol import WorkerStates
from hvdtrain.engine import events
from hvdtrain.errors import UsageError

_LATE = (events.RunEnded, events.RunFailed)


@dataclass(frozen=True)
class LeavesBuffers:
    """Calls `callback`. Raises `UsageError`: it has changed a buffer.

    The model has those of one virtual worker then, another one on each number of workers; all others would go on with
    what they had.
    """

    callback: events.Callback
    states: WorkerStates

    def __call__(self, event: events.Event) -> None:
        before = self.states.stamp()
        self.callback(event)
        changed = [] if isinstance(event, _LATE) else self.states.changed_since(before)
        if changed:
            raise UsageError(
                f"--virtual-workers is given, and a callback of the task has changed {changed[0]!r} of the model at "
                f"{type(event).__name__}.",
                "Each virtual worker has buffers of its own, and those of one of them are in the model then.",
                "keep what callbacks change outside of the model's buffers: in an attribute of the task (in TensorFlow "
                "a tf.Variable that no layer has); or leave --virtual-workers out.",
            )
