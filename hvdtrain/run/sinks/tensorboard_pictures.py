"""Pictures of records in TensorBoard, as the model gets them: they show what augmentation and decoding have done."""

import io
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.engine.source import Source
from hvdtrain.run.sinks.logger_api import Point
from hvdtrain.run.sinks.tensorboard_messages import messages

_MODES: Final = {1: "L", 3: "RGB"}
"""Channels → how Pillow calls that."""
_NO_PICTURE: Final = "no feature of a record is a picture [height, width, 1 or 3]"

_log = logging.getLogger("hvdtrain.run")


class Pictures:
    """At the beginning of each epoch, pictures of the first records. Rank 0 reads and decodes them once more for that.

    Args:
        source: of the records 0, 1 … count − 1.
    """

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
