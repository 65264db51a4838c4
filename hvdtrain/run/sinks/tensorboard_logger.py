"""tb/: event files for TensorBoard, written without TensorFlow or torch."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from data_sharding.formats.tfrecord import FOOTER, HEADER, length_crc, masked_crc
from data_sharding.storage.redaction import redacted_values
from hvdtrain.config.yaml_file import dump_values
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.named_arrays import State
from hvdtrain.run.sinks.logger_api import Further, Logger, Outcome, Point
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.tensorboard_messages import messages
from hvdtrain.run.sinks.tensorboard_pictures import Pictures

_PREFIX: Final = "events.out.tfevents."
_VERSION: Final = "brain.Event:2"
_BINS: Final = 64


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


class Histograms:
    """Histograms of the weights at the end of every `every`-th epoch, from a copy of the training's state.

    The copy and the counting take the time of training: only where they are asked for.
    """

    def __init__(self, state: Callable[[], State], every: int) -> None:
        self._state, self._every = state, every

    def __call__(self, event: Event) -> Point | None:
        match event:
            case events.EpochEnded(epoch=epoch, step=step) if (epoch + 1) % self._every == 0:
                return Point(step, time.time(), {}, dict(_histograms(self._state())))
        return None


def _histograms(state: State) -> Iterator[tuple[str, Any]]:
    make_histogram = messages().histogram
    for name, array in state.items():
        if not name.startswith("model/") or array.dtype.kind != "f":
            continue
        finite = array[np.isfinite(array)]
        if finite.size:
            yield f"weights/{name.removeprefix('model/')}", make_histogram(finite.astype(np.float64), _BINS)


def _open(context: SinkContext, step: int) -> EventFile:
    return EventFile(context.folder.tensorboard, step, dump_values(redacted_values(asdict(context.config))))


def _further(context: SinkContext) -> Iterator[Further]:
    if context.config.logger_histograms:
        yield Histograms(context.state, context.config.logger_histograms)
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
