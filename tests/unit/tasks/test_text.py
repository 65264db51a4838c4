"""Text: each byte is predicted once, short records count by what they hold, and the task trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import Forker
from support.runs import result_of

from data_sharding import Catalog, RecordReader
from data_sharding.errors import PlanError
from data_sharding.formats.text_file import TextFormat
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.text import NOTHING
from hvdtrain.tasks.torch import TorchText


def payloads(catalog: Catalog) -> list[bytes]:
    with RecordReader(catalog) as reader:
        return list(reader.load(np.arange(len(catalog))))


@settings(max_examples=30, deadline=None)
@given(text=st.binary(min_size=2, max_size=90), window=st.integers(1, 40), share=st.floats(0.05, 0.95))
def test_each_byte_but_the_first_is_predicted_once(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, window: int, share: float
) -> None:
    path = tmp_path_factory.mktemp("text") / "any.txt"
    path.write_bytes(text)
    whole = payloads(Catalog.index(path, format=TextFormat(window)))
    assert text[:1] + b"".join(record[1:] for record in whole) == text
    assert all(len(record) == window + 1 for record in whole[:-1])
    parts = []
    for first, last in ((0.0, share), (share, 1.0)):
        if int(share * len(whole)) not in (0, len(whole)):
            parts += payloads(Catalog.index(path, format=TextFormat(window, first, last)))
    assert parts in ([], whole)


@pytest.mark.parametrize("options", [{"window": 0}, {"first": 0.5, "last": 0.5}, {"last": 1.1}, {"first": -0.1}])
def test_windows_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="The format text was given"):
        TextFormat(**options)


def test_a_folder_of_text_is_text_and_one_of_images_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc" * 200)
    assert Catalog.index(tmp_path).format == TextFormat()
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(b"png")
    assert Catalog.index(tmp_path).format.name == "image_folder"


def test_short_records_count_by_what_they_hold(tmp_path: Path) -> None:
    """The loss of a short record is the mean over its own bytes, whatever stands behind its end."""
    (tmp_path / "train.txt").write_bytes(bytes(range(50, 73)))  # 2 records of 16 + 1 and 6 + 1 bytes
    task = TorchText(context=16, width=8, heads=2, blocks=1)
    splits = task.open_data(DataAccess(str(tmp_path), tmp_path / "cache"))
    assert splits.validation is None
    with RecordReader(splits.train) as reader:
        features = task.decode(reader.load(np.arange(2)))
    assert features["next"][1].tolist() == [*range(67, 73), *[NOTHING] * 10]
    assert features["seen"][1].tolist() == [*range(66, 73), *[0] * 9]
    model = task.build_model()
    batch = {name: torch.from_numpy(array) for name, array in features.items()}
    measured = task.measure(model, batch)
    alone = task.measure(model, {"seen": batch["seen"][1:, :6], "next": batch["next"][1:, :6]})
    torch.testing.assert_close(measured["loss"][1], alone["loss"][0])
    torch.testing.assert_close(measured["accuracy"][1], alone["accuracy"][0])


def test_short_texts_share_a_record_and_see_nothing_of_each_other(tmp_path: Path) -> None:
    """As many bytes are predicted, each from the same ones, in fewer records."""
    for number, length in enumerate((40, 7, 5, 17, 4, 2, 30)):
        (tmp_path / f"train{number}.txt").write_bytes(bytes(range(number, number + length)))
    sums, records = [], []
    weights: Any = {}
    for pack in (False, True):
        task = TorchText(context=16, width=8, heads=2, blocks=2, pack=pack)
        train = task.open_data(DataAccess(str(tmp_path), tmp_path / "cache")).train
        with RecordReader(train) as reader:
            features = task.decode(reader.load(np.arange(len(train))))
        model = task.build_model()
        model.load_state_dict(weights or model.state_dict())
        weights = model.state_dict()
        batch = {name: torch.from_numpy(array) for name, array in features.items()}
        counts = (batch["next"] != NOTHING).sum(1)
        with torch.no_grad():
            measured = task.measure(model, batch)
        sums.append([int(counts.sum()), *(float((values * counts).sum()) for values in measured.values())])
        records.append(len(train))
    assert records == [10, 7]
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)


def test_no_place_sees_what_follows() -> None:
    task = TorchText(context=12, width=8, heads=2, blocks=2)
    model = task.build_model().eval()
    one = torch.randint(0, 256, (1, 12), generator=torch.manual_seed(0))
    other = one.clone()
    other[0, 7:] = 3
    torch.testing.assert_close(model(one)[:, :7], model(other)[:, :7])
    assert not torch.allclose(model(one)[:, 7:], model(other)[:, 7:])


def test_the_last_tenth_is_held_out(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"x" * 1601)
    task = TorchText(context=16)
    splits = task.open_data(DataAccess(str(tmp_path), tmp_path / "cache"))
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation)) == (180, 20)
    alone = task.open_validation(DataAccess(str(tmp_path), tmp_path / "cache"))  # as `hvdtrain evaluate` opens it
    assert alone is not None
    assert payloads(alone) == payloads(splits.validation)
    assert len(task.open_set(DataAccess(str(tmp_path), tmp_path / "cache"), "b.txt")) == 100
    (tmp_path / "b.txt").unlink()
    (tmp_path / "a.txt").write_bytes(b"x" * 20)
    with pytest.raises(UsageError, match="holds no text to validate on|holds no text to train on"):
        TorchText(context=64).open_data(DataAccess(str(tmp_path), tmp_path / "cache"))


def test_a_width_that_heads_cannot_share() -> None:
    with pytest.raises(UsageError, match="width=10, heads=4"):
        TorchText(width=10, heads=4)


def test_the_loss_falls(forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "any.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    sizes = ["--task-args.context", "32", "--task-args.width", "32", "--task-args.blocks", "1"]
    argv = ["--task", "text", "--data.dir", "data", "--epochs", "3", "--lr", "0.02", "--output-dir", "out", *sizes]
    ended = forker.run(argv, tmp_path, {})
    assert ended.code == 0, ended
    result = result_of(tmp_path / "out")
    assert result["metrics"]["loss"] < 2.0 < result["first_step_loss"]
