"""Tables of predictions: each format holds the same rows, and what is no table of numbers is refused."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from support.numpy_training import NumpyTask
from support.processes import run_command

from hvdtrain.errors import UsageError
from hvdtrain.run.code_checksum import code_checksum
from hvdtrain.run.predicted_values import described
from hvdtrain.run.prediction import steps_a_part
from hvdtrain.run.prediction_files import FORMATS, joined
from hvdtrain.run.prediction_parts import PredictionParts
from hvdtrain.run.trained_model import step_batch
from hvdtrain.task.predicting import check_predictions
from hvdtrain.tasks.torch import TorchDigits

lengths = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)  # numpy cuts NUL off


def columns_of(ids: list[int], file: str, width: int = 2) -> dict[str, Any]:
    return {
        "id": np.array(ids, np.int64),
        "file": np.array([file] * len(ids), np.str_),
        "x": np.array(ids, np.float32).repeat(width).reshape(-1, width) / np.float32(7),
    }


@given(lengths=lengths, files=st.lists(texts, min_size=4, max_size=4))
def test_every_format_holds_the_rows_of_all_parts(lengths: list[int], files: list[str]) -> None:
    ends = np.cumsum(lengths).tolist()
    spans = zip(ends, lengths, files, strict=False)
    parts = [columns_of(list(range(end - length, end)), file) for end, length, file in spans]
    contents = {}
    for suffix, write in FORMATS.items():
        write(file := io.BytesIO(), lambda: iter(parts))
        contents[suffix] = file.getvalue()
    with np.load(io.BytesIO(contents[".npz"]), allow_pickle=False) as arrays:
        rows = {name: arrays[name].tolist() for name in arrays.files}
    assert rows["id"] == list(range(ends[-1]))
    assert rows == {name: [value for part in parts for value in part[name].tolist()] for name in rows}
    assert parquet.read_table(io.BytesIO(contents[".parquet"])).to_pydict() == rows
    lines = [json.loads(line) for line in contents[".jsonl"].decode().split("\n")[:-1]]
    assert lines == [{name: rows[name][row] for name in rows} for row in range(ends[-1])]


def test_json_has_null_for_what_is_not_finite() -> None:
    FORMATS[".jsonl"](file := io.BytesIO(), lambda: iter([{"x": np.array([[1.0, np.nan], [np.inf, 0.0]])}]))
    assert file.getvalue() == b'{"x": [1.0, null]}\n{"x": [null, 0.0]}\n'


def test_rows_of_ranks_are_in_the_order_of_the_records() -> None:
    assert joined([columns_of([0, 3], "a"), columns_of([1, 2], "bb")])["file"].tolist() == ["a", "bb", "bb", "a"]


def test_a_folder_that_a_killed_command_has_just_made_is_used(tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    folder = tmp_path / "out.npz.parts"
    folder.mkdir()
    (folder / ".lock").touch()
    assert PredictionParts(output).begin({"task": "a"}, False) == 0
    (tmp_path / "other.npz.parts").mkdir()
    (tmp_path / "other.npz.parts" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is no folder of predictions"):
        PredictionParts(tmp_path / "other.npz").begin({"task": "a"}, False)


def test_batches_with_other_columns_are_refused(tmp_path: Path) -> None:
    said = r"the predictions are id, file, x \[2\], and for others id, file, x \[3\]"
    first, other = columns_of([0], "a"), columns_of([1], "a", width=3)
    with pytest.raises(UsageError, match=said):
        joined([first, other])
    output = tmp_path / "out.npz"
    parts = PredictionParts(output)
    assert parts.begin({"task": "a"}, False) == 0
    parts.write(0, first)
    parts.release()
    resumed = PredictionParts(output)
    assert resumed.begin({"task": "a"}, False) == 1
    for each in (parts, resumed):
        with pytest.raises(UsageError, match=said):
            each.write(1, other)
    assert resumed.records(1) == (1, 0)


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        pytest.param(lambda _: b"", 1, id="empty"),
        pytest.param(lambda whole: whole[:-30], 1, id="short"),
        pytest.param(lambda whole: whole[:900] + bytes([whole[900] ^ 1]) + whole[901:], 3, id="flipped"),
    ],
)
def test_damaged_parts_are_predicted_again_or_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], kept: int
) -> None:
    parts = PredictionParts(tmp_path / "out.npz")
    assert parts.begin({}, False) == 0
    for number in range(3):
        parts.write(number, columns_of([number], "a" * 500))
    part = tmp_path / "out.npz.parts" / "part-000001.npz"
    part.write_bytes(damage(part.read_bytes()))
    with pytest.raises(UsageError, match="part-000001.npz is damaged"):
        parts.records(3)
    parts.release()
    again = PredictionParts(tmp_path / "out.npz")
    assert again.begin({}, False) == kept


def test_parts_of_a_task_that_was_edited_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checksum(text: str, module: str) -> str:
        (tmp_path / f"{module}.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop(module, None)
        return code_checksum(importlib.import_module(module).Mine())

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, second = (f"class Mine:\n    def predict(self, x):\n        return x + {n}\n" for n in (1, 2))
    sums = [checksum(text, "edited_task") for text in (first, first, second)]
    assert sums[0] == sums[1] != sums[2]
    cell = f'{first}    def known(self, x):\n        return x in {{"a", "b", "c", "d", "e"}}\n'
    asked = f"from hvdtrain.run.code_checksum import code_checksum\n{cell}print(code_checksum(Mine()))"
    seeds = ({"PYTHONHASHSEED": str(seed)} for seed in range(3))
    (known,) = {run_command([sys.executable, "-c", asked], 60, seed).stdout for seed in seeds}
    assert len(known.strip()) == 64
    in_cells = []
    for text in (first, "\n\n" + first, second):
        exec(text, cell := {"__name__": "__main__"})
        in_cells.append(code_checksum(cell["Mine"]()))  # type: ignore[operator]
    assert in_cells[0] == in_cells[1] != in_cells[2]


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        (None, "an object of type NoneType that names no values"),
        ({}, "an object of type dict that names no values"),
        ({"x": [1.0, 2.0]}, "'x', an object of type list"),
        ({3: np.zeros(2)}, "3, an object of type ndarray"),
        ({"x": np.zeros(())}, r"'x' of shape \(\)"),
        ({"x": np.zeros((3, 2))}, r"'x' of shape \(3, 2\)"),
    ],
)
def test_predictions_are_tensors_with_one_row_a_sample(predictions: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"What Mine predicts is {said}, for 2 samples."):
        check_predictions(predictions, 2, "Mine", lambda value: isinstance(value, np.ndarray))


class Classified(NumpyTask):
    label_feature = "label"


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        ({"name": np.array([b"cat"], object)}, "predicts as 'name' is of the type object"),
        ({"output": np.zeros((1, 2), complex)}, "predicts as 'output' is of the type complex128"),
        ({"output": np.zeros((1, 2, 3))}, r"returns float64 of shape \(1, 2, 3\)"),
        ({"output": np.zeros((1, 2), int)}, r"returns int64 of shape \(1, 2\)"),
    ],
)
def test_predictions_are_numbers_and_those_of_a_classification_logits(predictions: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        described(Classified(), predictions)


def test_a_classification_is_told_by_its_label_and_its_softmax() -> None:
    found = described(Classified(), {"output": np.array([[0.0, 1e3], [2.0, 2.0]])})
    assert found["label"].tolist() == [1, 0]
    assert found["probability"].tolist() == [[0.0, 1.0], [0.5, 0.5]]
    own = {"label": np.array([1])}
    assert described(Classified(), own) == own
    assert described(NumpyTask(), {"output": np.zeros((1, 2))}).keys() == {"output"}


def test_a_classification_without_labels_or_logits_is_told_so() -> None:
    with pytest.raises(UsageError, match="TorchDigits.predict\\(\\) returns 'depth', and neither 'label' nor 'output'"):
        described(TorchDigits(), {"depth": np.zeros(3)})


def test_a_column_of_parquet_has_a_type_for_the_values_of_all_parts() -> None:
    parts = [{"x": np.array([1, 2])}, {"x": np.array([0.5], np.float32)}]
    FORMATS[".parquet"](file := io.BytesIO(), lambda: iter(parts))
    assert parquet.read_table(file).to_pydict() == {"x": [1.0, 2.0, 0.5]}
    with pytest.raises(UsageError, match="are uint64 for some records, and int8 for others"):
        FORMATS[".parquet"](io.BytesIO(), lambda: iter([{"x": np.zeros(1, np.uint64)}, {"x": np.zeros(1, np.int8)}]))


def test_logits_that_are_nan_have_no_class() -> None:
    class Classes(NumpyTask):
        label_feature = "y"

    predicted = described(Classes(), {"output": np.array([[0.0, np.nan], [0.0, 1.0]], np.float32)})
    assert predicted["label"].tolist() == [-1, 1]
    with pytest.raises(UsageError, match=r"'x' has the shape \(3, 0\)"):
        described(Classes(), {"x": np.zeros((3, 0))})


def test_parts_that_another_command_writes_are_left_alone(tmp_path: Path) -> None:
    first, second = PredictionParts(tmp_path / "out.npz"), PredictionParts(tmp_path / "out.npz")
    first.begin({"task": "a"}, False)
    first.write(0, columns_of([0], "a"))
    for plan in ({"task": "a"}, {"task": "b"}):
        with pytest.raises(UsageError, match=r"Another command is writing .*out\.npz\. Both would write"):
            second.begin(plan, True)
    assert first.records(1) == (1, 0)
    first.release()
    assert second.begin({"task": "a"}, False) == 1


def test_other_parts_say_what_is_other(tmp_path: Path) -> None:
    PredictionParts(tmp_path / "out.npz").begin({"task": "a", "records_a_part": 16}, False)
    with pytest.raises(UsageError, match="They hold 16 records each, and so many workers make parts of 32"):
        PredictionParts(tmp_path / "out.npz").begin({"task": "a", "records_a_part": 32}, False)
    with pytest.raises(UsageError, match="They are of another checkpoint"):
        PredictionParts(tmp_path / "out.npz").begin({"task": "b", "records_a_part": 32}, False)
    with pytest.raises(UsageError, match="is a folder"):
        PredictionParts(tmp_path).begin({}, True)


@given(training_batch=st.integers(1, 600), share=st.floats(0, 1))
def test_parts_hold_the_same_records_for_any_number_of_workers(training_batch: int, share: float) -> None:
    workers = 1 + round(share * (16 * training_batch - 1))
    batch = step_batch(training_batch, workers)
    assert batch >= workers
    assert batch * steps_a_part(training_batch, batch) == 16 * training_batch
