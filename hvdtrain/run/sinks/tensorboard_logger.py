"""tb/: event files for TensorBoard, written without TensorFlow or torch.

Pictures of records, as the model gets them, show what augmentation and decoding have done.
"""

import functools
import io
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.formats.tfrecord import FOOTER, HEADER, length_crc, masked_crc
from data_sharding.storage.redaction import redacted_values
from hvdtrain.config.yaml_file import dump_values
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.engine.source import Source
from hvdtrain.named_arrays import State
from hvdtrain.run.sinks.logger_api import Further, Logger, Outcome, Point
from hvdtrain.run.sinks.sink import SinkContext

_PREFIX: Final = "events.out.tfevents."
_VERSION: Final = "brain.Event:2"
_BINS: Final = 64
_MODES: Final = {1: "L", 3: "RGB"}
"""Channels → how Pillow calls that."""
_NO_PICTURE: Final = "no feature of a record is a picture [height, width, 1 or 3]"
_NOT_NEEDED: Final = ("torch", "tensorflow", "boto3", "google.cloud", "comet_ml")

_log = logging.getLogger("hvdtrain.run")


class Messages(NamedTuple):
    """Classes of protobuf messages, and two functions that make such messages."""

    Event: Any  # see tensorflow/core/util/event.proto and framework/summary.proto
    SessionLog: Any
    Summary: Any
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


class EventFile:
    """A new file of events in `folder`: TFRecords of `Event` messages. Files of earlier starts of the run stay.

    Args:
        step: updates that are done. TensorBoard shows nothing that earlier files have of later steps: these were lost,
            and are trained again.
        config: shown as text.
    """

    def __init__(self, folder: Path, step: int, config: str) -> None:
        self._messages = messages()
        text, session = self._messages.text, self._messages.SessionLog
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = (folder / _next_name(folder)).open("xb")
        self._append(time.time(), 0, file_version=_VERSION)
        self._append(time.time(), step + 1, session_log=session(status=session.START))
        markdown = "".join(f"    {line}\n" for line in config.splitlines())  # indented, so that it stays as it is
        self._append(time.time(), step, summary=text("config", markdown))
        self._file.flush()

    def write(self, points: Sequence[Point]) -> None:
        summary = self._messages.Summary
        for point in points:
            values = [summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            values += [summary.Value(tag=name, histo=histogram) for name, histogram in point.histograms.items()]
            values += [summary.Value(tag=name, image=picture) for name, picture in point.pictures.items()]
            self._append(point.time, point.step, summary=summary(value=values))
        self._file.flush()

    def close(self, outcome: Outcome) -> None:  # noqa: ARG002  TensorBoard shows no end
        self._file.close()

    def _append(self, wall_time: float, step: int, **content: Any) -> None:
        payload = self._messages.Event(wall_time=wall_time, step=step, **content).SerializeToString()
        self._file.write(HEADER.pack(len(payload), length_crc(len(payload))))
        self._file.write(payload)
        self._file.write(FOOTER.pack(masked_crc(payload)))


def _next_name(folder: Path) -> str:
    """TensorBoard reads the files of a folder in the order of their names, so a later one has a larger number, also
    where the clock was set back."""
    earlier = [path.name.removeprefix(_PREFIX).partition(".")[0] for path in folder.glob(f"{_PREFIX}*")]
    number = max([int(time.time()), *(int(number) + 1 for number in earlier if number.isdigit())])
    return f"{_PREFIX}{number:010d}.{socket.gethostname()}"


def histograms(state: Callable[[], State], every: int, event: Event) -> Point | None:
    """Histograms of the weights at the end of every `every`-th epoch, from a copy of the training's state.

    The copy and the counting take the time of training: only where they are asked for.
    """
    if not isinstance(event, events.EpochEnded) or (event.epoch + 1) % every:
        return None
    return Point(event.step, time.time(), {}, dict(_histograms(state())))


def _histograms(state: State) -> Iterator[tuple[str, Any]]:
    make_histogram = messages().histogram
    for name, array in state.items():
        if not name.startswith("model/") or array.dtype.kind != "f":
            continue
        finite = array[np.isfinite(array)]
        if finite.size:
            yield f"weights/{name.removeprefix('model/')}", make_histogram(finite.astype(np.float64), _BINS)


class Pictures:
    """At the beginning of each epoch, pictures of the records 0, 1 … count − 1. Rank 0 reads and decodes them once more
    for that."""

    def __init__(self, source: Source, count: int) -> None:
        self._source, self._count = source, count
        self._first_step = self._steps_per_epoch = 0

    def __call__(self, event: Event) -> Point | None:
        match event:
            case events.RunStarted(step=step, steps_per_epoch=steps):
                self._first_step, self._steps_per_epoch = step, steps
            case events.EpochStarted(epoch=epoch) if self._count:
                step = epoch * self._steps_per_epoch
                if step >= self._first_step:  # else this epoch was begun, and shown, before an interruption
                    pictures = self._made(epoch)
                    return Point(step, time.time(), {}, pictures=pictures) if pictures else None
        return None

    def _made(self, epoch: int) -> dict[str, Any]:
        """Nothing where that fails: training goes on, and it is not tried again."""
        try:
            ids = np.arange(min(self._count, self._source.plan(epoch).num_records))
            features = self._source.decoded_again(epoch, ids)
            pictures = dict(_messages(features or {}))
            what = "records of a pipe cannot be read twice" if features is None else _NO_PICTURE
            problem = "" if pictures else what
        except Exception as error:  # the task's own code decodes, and may read what is not there any more
            pictures, problem = {}, f"{type(error).__name__}: {error}"
        if problem:
            self._count = 0
            _log.warning("TensorBoard receives no pictures: %s", problem)
        return pictures


def _messages(features: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Any]]:
    image = messages().Summary.Image
    for name, array in features.items():
        if array.ndim != 4 or array.shape[3] not in _MODES or array.dtype.kind not in "uif":
            continue
        for number, pixels in enumerate(as_bytes(array)):
            height, width, channels = pixels.shape
            shape = {"height": height, "width": width, "colorspace": channels}
            yield f"pictures/{name}/{number}", image(**shape, encoded_image_string=_png(pixels))


def as_bytes(pictures: NDArray[Any]) -> NDArray[np.uint8]:
    """Pictures [k, height, width, channels] as bytes: those of other types from their least value to their largest."""
    if pictures.dtype == np.uint8:
        return pictures
    values = np.nan_to_num(pictures.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    least, most = values.min(), values.max()
    scaled: NDArray[np.uint8] = np.round(255 * (values - least) / ((most - least) or 1.0)).astype(np.uint8)
    return scaled


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    mode = _MODES[pixels.shape[2]]
    Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels, mode).save(file, "PNG")
    return file.getvalue()


def _open(context: SinkContext, step: int) -> EventFile:
    return EventFile(context.folder.tensorboard, step, dump_values(redacted_values(asdict(context.config))))


def _further(context: SinkContext) -> Iterator[Further]:
    if context.config.logger_histograms:
        yield functools.partial(histograms, context.state, context.config.logger_histograms)
    if context.config.logger_pictures and context.train is not None:
        yield Pictures(context.train, context.config.logger_pictures)


LOGGER: Final = Logger(
    "TensorBoard",
    _open,
    module="tensorboardX",
    package="tensorboardX",
    prepare=messages,
    further=lambda context: list(_further(context)),
)
