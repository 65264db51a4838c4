"""The messages in TensorBoard's event files, as tensorboardX has them."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

_NOT_NEEDED: Final = ("torch", "tensorflow", "boto3", "google.cloud", "comet_ml")


class Messages(NamedTuple):
    """Classes of protobuf messages, and two functions that make such messages."""

    Event: Any  # see tensorflow/core/util/event.proto and framework/summary.proto
    SessionLog: Any  # see tensorflow/core/util/event.proto and framework/summary.proto
    Summary: Any  # see tensorflow/core/util/event.proto and framework/summary.proto
    text: Any  # (tag, text in Markdown) → Summary
    histogram: Any  # (numbers, bins) → HistogramProto


@functools.cache
def messages() -> Messages:
    """Raises what the import raises.

    tensorboardX also imports torch, for users' tensors, and clients of cloud storage, if they are installed. Without
    them it is there 0.2 s earlier in a job in torch, and 1.5 s earlier in one in TensorFlow, which needs no torch.
    """
    with alone("tensorboardX", _NOT_NEEDED):
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import make_histogram, text

    return Messages(Event, SessionLog, Summary, text, make_histogram)


@contextmanager
def alone(package: str, not_needed: tuple[str, ...]) -> Iterator[None]:
    """Inside, `package` is imported as if the modules that are not needed were not installed; what is imported already
    is found. It is forgotten after, unless it was there before: others then get it with all that it would import."""
    modules: dict[str, Any] = sys.modules
    known, hidden = package in modules, [name for name in not_needed if name not in modules]
    modules.update(dict.fromkeys(hidden))  # Python's own mark of a module that is not to be found
    try:
        yield
    finally:
        ours = [] if known else [name for name in modules if name == package or name.startswith(f"{package}.")]
        for name in (*hidden, *ours):
            modules.pop(name, None)
