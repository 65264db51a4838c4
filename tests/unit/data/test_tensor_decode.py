"""What a decode function returns becomes tensors, or is refused by its name."""

from __future__ import annotations

import pickle
import types
from typing import Any

import numpy as np
import pytest
import torch

from data_sharding import LoadedBatch, RecordBatch
from data_sharding.errors import PlanError
from hvdtrain.data.tensor_decode import TensorDecode, warn_of_float64
from hvdtrain.task.task import Task

RECORDS = RecordBatch([b"one", b"two"], np.array([0, 1]), None, np.ones(2, np.bool_))


def returning(value: Any, takes_text: bool = False) -> Any:
    def decode(_: RecordBatch) -> Any:
        return value

    task: Any = types.SimpleNamespace(decode=decode, framework="tensorflow" if takes_text else "torch")
    return TensorDecode(task)(RECORDS)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([[1], [1, 2]], object), r"Python objects \(list\)"),
        (np.array([1, None]), r"Python objects \(NoneType\)"),
        (np.array([b"a", "b"], object), r"Python objects \(bytes\)"),
        (np.array(["a", "b"]), r"text \(<U1\)"),
        (np.array([b"a", b"b"]), r"text \(\|S1\)"),
        (np.array(["2026-11-26", "2026-11-27"], "M8[D]"), r"dates \(datetime64\[D\]\)"),
        (np.array([1, 2], "m8[s]"), r"time spans \(timedelta64\[s\]\)"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, [("a", np.int32), ("b", np.float32)]), r"an array of \[\('a'"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(array: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        returning({"label": np.zeros(2), "image": array})
    assert "returning.<locals>.decode returned" in caught.value.fact
    assert "'image'" in caught.value.fact
    assert "'image'" in caught.value.hint or "numbers" in caught.value.hint


def test_no_array_at_all_is_refused() -> None:
    with pytest.raises(PlanError, match="returned no array"):
        returning({})


@pytest.mark.parametrize("kind", ["numbers", *"?bBhHiIlLqQefdFD"])
def test_every_kind_of_number_becomes_a_tensor_of_its_values(kind: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(np.float32 if kind == "numbers" else np.dtype(kind))
    for array in (values, values[:, ::-1], values[::-1], values.astype(values.dtype.newbyteorder(">"))):
        made = returning({"x": array})["x"]
        tensor = torch.from_numpy(made)
        assert np.array_equal(tensor.numpy(), array)
        assert made.dtype == array.dtype.newbyteorder("=")
    copied = kind in "qQ"  # C's long long is another dtype than int64, which torch does not know in all forms
    assert copied or returning({"x": values})["x"] is values, "nothing is copied without need"


def test_without_a_decode_function_the_items_are_named() -> None:
    task: Any = types.SimpleNamespace(framework="torch")
    task.decode = types.MethodType(Task.decode, task)
    records = RecordBatch([1, 2], RECORDS.ids, None, RECORDS.intact, collate=lambda _: {"x": np.array(["a", "b"])})
    with pytest.raises(PlanError, match=r"^The items of the data give an array of text \(<U1\) for 'x'\."):
        TensorDecode(task)(records)


def test_tensorflow_takes_text() -> None:
    texts = [np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array([b"a", "bc"], object)]
    for text in texts:
        assert returning({"x": text}, takes_text=True)["x"] is text
    with pytest.raises(PlanError, match="Python objects"):
        returning({"x": np.array([{}, None], object)}, takes_text=True)


def test_other_mistakes_are_left_to_the_loader() -> None:
    assert returning([1, 2]) == [1, 2]
    assert returning({"x": [1, 2]}) == {"x": [1, 2]}
    assert returning(types.MappingProxyType({"x": RECORDS.ids})) == {"x": RECORDS.ids}


@pytest.mark.parametrize(("framework", "conflict"), [("torch", "refuse it"), ("tensorflow", "Keras converts it")])
def test_float64_is_said_once(framework: str, conflict: str, caplog: pytest.LogCaptureFixture) -> None:
    task: Any = types.SimpleNamespace(decode=returning, framework=framework)
    features = {"x": np.zeros(2), "y": np.zeros(2, np.float32), "z": np.zeros((2, 1))}
    warn_of_float64(task, LoadedBatch(0, RECORDS.ids, np.ones(2, np.float32), features, 2.0))
    (record,) = caplog.records
    assert record.message.startswith("The decode function returning returned float64 for 'x' and 'z'. ")
    assert conflict in record.message


def test_it_goes_to_other_processes() -> None:
    task: Any = types.SimpleNamespace(decode=len, framework="torch")
    assert pickle.loads(pickle.dumps(TensorDecode(task))) == TensorDecode(task)
