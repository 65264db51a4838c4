"""Data sets of Hugging Face as records, in each of their formats."""

from __future__ import annotations

import io
import wave
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_sharding import Catalog, RecordReader

IDS = np.array([4, 0, 4])
COLUMNS = {
    "image": [Image.fromarray(np.full((2, 2, 3), number, np.uint8)) for number in range(6)],
    "label": [0, 1] * 3,
    "tokens": [[1, 2], [3]] * 3,
    "text": ["one two", "three"] * 3,
    "box": [{"left": number} for number in range(6)],
}


@pytest.fixture(scope="module")
def datasets() -> ModuleType:
    module: ModuleType = pytest.importorskip("datasets")
    return module


def batch_of(dataset: Any, **options: Any) -> dict[str, Any]:
    with RecordReader(Catalog.of(dataset, **options)) as reader:
        records = reader.load(IDS)
    assert records.collate is not None
    return {name: array.tolist() for name, array in records.collate(records.payloads).items()}


@pytest.mark.parametrize("kind", [None, "python", "numpy", "pandas", "arrow", "polars"])
def test_all_formats_give_the_same_batch(datasets: ModuleType, kind: str | None) -> None:
    dataset = datasets.Dataset.from_dict(COLUMNS).cast_column("image", datasets.Image()).with_format(kind)
    expected = {"tokens": [[1, 2]] * 3, "label": [0] * 3, "text": ["one two"] * 3, "box.left": [4, 0, 4]}
    expected["image"] = [np.full((2, 2, 3), number).tolist() for number in IDS]
    assert batch_of(dataset, pad={"tokens": 0}) == expected
    labels = Catalog.of(dataset, labels="label", pad={"tokens": 0}).labels
    assert labels is not None
    assert labels.tolist() == COLUMNS["label"]


@pytest.mark.parametrize("kind", [None, "numpy", "arrow", "polars"])
def test_a_format_may_leave_out_columns(datasets: ModuleType, kind: str | None) -> None:
    dataset = datasets.Dataset.from_dict({name: COLUMNS[name] for name in ("label", "text")})
    assert batch_of(dataset.with_format(kind, columns=["label"])) == {"label": [0] * 3}


def test_a_sound_that_is_not_decoded_is_bytes(datasets: ModuleType) -> None:
    sounds = datasets.Dataset.from_dict({"audio": [{"bytes": b"RIFF", "path": None}] * 6})
    assert batch_of(sounds.cast_column("audio", datasets.Audio(decode=False)))["audio.bytes"] == [b"RIFF"] * 3


@pytest.mark.parametrize("kind", [None, "numpy", "torch", "arrow"])
def test_sounds_are_decoded_by_torchcodec(datasets: ModuleType, kind: str | None) -> None:
    """It needs FFmpeg, and is not among the packages that tests install."""
    pytest.importorskip("torchcodec.decoders", exc_type=Exception)
    sounds = datasets.Dataset.from_dict({"audio": [{"bytes": wave_file(4 + i), "path": None} for i in range(6)]})
    sounds = sounds.cast_column("audio", datasets.Audio()).with_format(kind)
    batch = batch_of(sounds, pad={"audio.array": 0})
    assert batch["audio.sampling_rate"] == [8000] * 3
    eight, four = [-0.5, -0.25, 0.0, 0.25] * 2, [-0.5, -0.25, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0]
    assert batch["audio.array"] == [eight, four, eight]


def wave_file(samples: int) -> bytes:
    """A sound of one channel: -0.5, -0.25, 0, 0.25, and again."""
    numbers = np.array([8192 * (i % 4 - 2) for i in range(samples)], "<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, samples, "NONE", "none"))
        sound.writeframes(numbers.tobytes())
    return file.getvalue()
