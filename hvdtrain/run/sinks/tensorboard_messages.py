"""The messages in TensorBoard's event files, as tensorboardX has them."""

import functools
from typing import Any, NamedTuple

from hvdtrain.run.sinks.hidden_modules import forgotten_after, hidden


class Messages(NamedTuple):
    """Classes of protobuf messages, and two functions that make such messages.

    Attributes:
        Event, SessionLog, Summary: see tensorflow/core/util/event.proto and framework/summary.proto.
        text: (tag, text in Markdown) → Summary.
        histogram: (numbers, bins) → HistogramProto.
    """

    Event: Any
    SessionLog: Any
    Summary: Any
    text: Any
    histogram: Any


@functools.cache
def messages() -> Messages:
    """Raises what the import raises.

    tensorboardX also imports torch, for users' tensors, and clients of cloud storage, if they are installed. A job in
    TensorFlow needs no torch, and all of it together takes seconds.
    """
    with forgotten_after("tensorboardX"), hidden("torch", "tensorflow", "boto3", "google.cloud", "comet_ml"):
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import make_histogram, text

    return Messages(Event, SessionLog, Summary, text, make_histogram)
