"""Event files: TensorBoard shows every value at its step, and each step once although a run was resumed."""

from __future__ import annotations

import importlib
import io
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.event_files import events_of, shown_scalars

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.engine import events
from hvdtrain.run.sinks.logger_api import Point
from hvdtrain.run.sinks.tensorboard_logger import EventFile, Pictures, alone, as_bytes, histograms, messages


def written(folder: Path, begin: int, steps: range, offset: float = 0.0) -> None:
    file = EventFile(folder, begin, dump_config(TrainConfig(lr=0.125)))
    file.write([Point(step, 1000.0 + step, {"train/loss": step + offset, "lr": 0.5}) for step in steps])
    file.close("finished")


def test_every_value_is_shown_at_its_step_and_time(tmp_path: Path) -> None:
    written(tmp_path / "tb", 0, range(1, 4))
    assert shown_scalars(tmp_path / "tb") == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "lr": [(1, 0.5), (2, 0.5), (3, 0.5)],
    }
    first, _, config, *points = events_of(tmp_path / "tb")
    assert first.file_version == "brain.Event:2"
    assert [event.wall_time for event in points] == [1001.0, 1002.0, 1003.0]
    (text,) = config.summary.value
    assert (text.tag, text.metadata.plugin_data.plugin_name) == ("config/text_summary", "text")
    assert b"    lr: 0.125\n" in text.tensor.string_val[0]


@pytest.mark.parametrize("clock", [0, -3600], ids=["at once", "clock set back"])
@pytest.mark.parametrize("kept", [0, 4])
def test_steps_that_were_lost_are_shown_once(
    tmp_path: Path, kept: int, clock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six steps, those after `kept` are lost."""
    now = time.time()
    monkeypatch.setattr("hvdtrain.run.sinks.tensorboard_logger.time.time", lambda: now)
    written(tmp_path, 0, range(1, 7))
    monkeypatch.setattr("hvdtrain.run.sinks.tensorboard_logger.time.time", lambda: now + clock)
    written(tmp_path, kept, range(kept + 1, 9), offset=100.0)
    expected = [(step, float(step) + (100.0 if step > kept else 0.0)) for step in range(1, 9)]
    assert shown_scalars(tmp_path)["train/loss"] == expected
    assert len(list(tmp_path.iterdir())) == 2


def test_a_number_that_is_no_float32_or_not_finite_is_written_all_the_same(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 0, "")
    file.write([Point(1, 0.0, {"nan": float("nan"), "inf": float("inf"), "huge": 1e300, "int": 2**40})])
    file.close("failed")
    shown = shown_scalars(tmp_path)
    assert np.isnan(shown["nan"][0][1])
    assert shown["inf"] == shown["huge"] == [(1, float("inf"))]
    assert shown["int"] == [(1, 2.0**40)]


class Decoded:
    """The part of a `Source` that is used: two records."""

    def __init__(self, features: Any) -> None:
        self.features, self.asked = features, list[tuple[int, list[int]]]()

    def plan(self, _epoch: int) -> Any:
        return SimpleNamespace(num_records=2)

    def decoded_again(self, epoch: int, ids: NDArray[np.int64]) -> Any:
        self.asked.append((epoch, ids.tolist()))
        if isinstance(self.features, Exception):
            raise self.features
        return self.features


def test_pictures_of_records_are_shown_at_the_begin_of_each_epoch(tmp_path: Path) -> None:
    grey = np.linspace(-1, 1, 2 * 4 * 5, dtype=np.float32).reshape(2, 4, 5, 1)
    grey[0, 0, 1] = np.nan
    colours = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    source = Decoded({"grey": grey, "colours": colours, "label": np.arange(2), "tokens": np.zeros((2, 7))})
    further = Pictures(cast(Any, source), 5)
    assert further(events.RunStarted(0, 60, 30, 2)) is None
    points = [further(events.EpochStarted(epoch)) for epoch in range(2)]
    assert source.asked == [(0, [0, 1]), (1, [0, 1])]  # there are no more
    file = EventFile(tmp_path, 0, "")
    file.write([point for point in points if point])
    file.close("finished")
    *_, last = events_of(tmp_path)
    assert last.step == 30
    shown = {value.tag: value.image for value in last.summary.value}
    assert list(shown) == [f"pictures/{name}/{number}" for name in ("grey", "colours") for number in range(2)]
    one = shown["pictures/colours/1"]
    assert (one.height, one.width, one.colorspace) == (4, 5, 3)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(one.encoded_image_string))), colours[1])
    pixels = np.asarray(Image.open(io.BytesIO(shown["pictures/grey/0"].encoded_image_string)))
    assert (pixels[0, 0], pixels[0, 1]) == (0, 128)
    assert as_bytes(grey).max() == 255


def test_pictures_of_an_epoch_that_goes_on_are_shown_already() -> None:
    further = Pictures(cast(Any, Decoded({"x": np.zeros((2, 4, 4, 1), np.uint8)})), 2)
    further(events.RunStarted(45, 60, 30, 3))
    points = [further(events.EpochStarted(epoch)) for epoch in (1, 2)]
    assert [point and point.step for point in points] == [None, 60]


@pytest.mark.parametrize(
    ("found", "says"),
    [({"x": np.zeros((2, 3))}, "is a picture"), (None, "of a pipe"), (OSError("gone"), "OSError: gone")],
)
def test_records_without_pictures_are_told_once(found: Any, says: str, caplog: pytest.LogCaptureFixture) -> None:
    further = Pictures(cast(Any, Decoded(found)), 2)
    with caplog.at_level("WARNING", "hvdtrain.run"):
        assert [further(events.EpochStarted(epoch)) for epoch in range(3)] == [None] * 3
    (message,) = caplog.messages
    assert says in message


def test_histograms_count_the_weights_at_every_second_epochs_end(tmp_path: Path) -> None:
    weights = np.linspace(-1, 1, 1000, dtype=np.float32)
    weights[7] = np.nan
    state = {
        **{"model/dense": weights, "model/dead": np.full(3, np.inf, np.float32), "optimizer/m": weights},
        "model/steps": np.arange(3),
    }
    further = partial(histograms, lambda: state, 2)
    points = [further(events.EpochEnded(epoch, 10 * (epoch + 1))) for epoch in range(4)]
    assert [point and point.step for point in points] == [None, 20, None, 40]
    assert further(events.EpochStarted(1)) is None
    file = EventFile(tmp_path, 0, "")
    file.write([point for point in points if point is not None])
    file.close("finished")
    *_, last = events_of(tmp_path)
    (value,) = last.summary.value
    assert (last.step, value.tag, value.histo.num) == (40, "weights/dense", 999)
    assert sum(value.histo.bucket) == 999
    assert (value.histo.min, value.histo.max) == (-1.0, 1.0)


def test_a_users_own_import_of_the_package_is_not_touched() -> None:
    """It finds boto3, and without this test's own hiding, which spares its time, it would find torch."""
    ours = messages().Event(step=7).SerializeToString()
    assert "tensorboardX" not in sys.modules
    with alone("tensorboardX", ("torch", "google.cloud", "comet_ml")):
        record_writer = importlib.import_module("tensorboardX.record_writer")
        theirs = importlib.import_module("tensorboardX.proto.event_pb2").Event.FromString(ours)
    assert record_writer.S3_ENABLED
    assert theirs.step == 7


def test_what_is_hidden_is_found_again() -> None:
    sys.modules.pop("wave", None)  # another test may have imported it
    with alone("none", ("wave", "json")):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("wave")
        importlib.import_module("json")  # it was imported already
    importlib.import_module("wave")
