"""Data sets of Hugging Face as records, in each of their formats."""

from __future__ import annotations

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
