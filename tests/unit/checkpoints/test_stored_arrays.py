"""Arrays of every kind that a state may have come back from a file with the same bits, names and dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from hvdtrain.checkpoints.format import (
    Checkpoint,
    Position,
    read_checkpoint,
    weights_not_finite,
    write_checkpoint,
)
from hvdtrain.checkpoints.parts import in_parts, part_of
from hvdtrain.checkpoints.stored_arrays import restored, stored
from hvdtrain.named_arrays import as_numbers, bits_dtype, like_numbers

BITS = {"bfloat16": 2, "float8_e4m3fn": 1, "float4_e2m1fn_x2": 1, "complex32": 4, "bits8": 1, "int4": 1}
PLAIN = ["?", "i1", "u2", "u8", "f2", "f4", "f8", "c8", "c16"]
kinds = st.one_of(
    st.sampled_from(PLAIN).map(lambda kind: (np.dtype(kind), np.dtype(kind))),
    st.sampled_from([*BITS]).map(lambda name: (np.dtype(f"<u{BITS[name]}"), bits_dtype(name, BITS[name]))),
)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
unusual = kinds.flatmap(lambda kind: arrays.arrays(kind[0], shapes).map(lambda array: array.view(kind[1])))
texts = st.text(min_size=1).map(lambda text: np.asarray(('"' + text.replace("\0", "")).encode()))
states = st.dictionaries(st.from_regex("(model|optimizer)/[a-z#.]{1,9}", fullmatch=True), unusual | texts, max_size=5)


@given(state=states)
def test_they_come_back(state: dict[str, NDArray[Any]]) -> None:
    written = stored(state)
    assert all(array.dtype.kind in "biuf" for array in written.values())
    back = restored(written)
    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in back.items()} == {
        n: (a.dtype, a.shape, a.tobytes()) for n, a in state.items()
    }


def test_they_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    state = {
        "model/w": np.arange(4, dtype="<u2").view(bits_dtype("bfloat16", 2)).reshape(2, 2).T,
        "model/z": np.array([1 + 2j]),
        "model/_extra_state": np.asarray(b'{"a": 1}'),
        "optimizer/#numbers": np.asarray(b"[1, 2]"),
    }
    write_checkpoint(tmp_path / "c", Checkpoint(dict(state), Position(), {}), in_parts(2))
    back = read_checkpoint(tmp_path / "c").state
    assert {n: (a.dtype, a.tobytes()) for n, a in back.items()} == {n: (a.dtype, a.tobytes()) for n, a in state.items()}


def test_texts_of_other_lengths_do_not_change_what_each_worker_writes() -> None:
    """Each of several workers divides its own copy of the state; some texts may be longer on one of them."""
    arrays_of_all = {f"model/{i}": np.zeros(i) for i in range(1, 9)}
    short, long = ({**arrays_of_all, "optimizer/#numbers": np.asarray(b"1" * n)} for n in (1, 4000))
    assert [[*part_of(short, i, 3)] for i in range(3)] == [[*part_of(long, i, 3)] for i in range(3)]


def test_bfloat16_that_is_not_finite_is_noticed() -> None:
    numbers = np.array([1.0, np.nan, np.inf], np.float32)
    weights = {f"model/{i}": like_numbers(numbers[i : i + 1], bits_dtype("bfloat16", 2)) for i in range(3)}
    assert weights_not_finite(weights) == ["1", "2"]


@pytest.mark.parametrize("value", [0.0, -1.5, 3.14159, 1e38, -np.inf, 1e-40, 65535.9])
def test_bfloat16_is_rounded_as_torch_does(value: float) -> None:
    import torch

    rounded = like_numbers(np.full((2, 1), value, np.float32), bits_dtype("bfloat16", 2))
    expected = torch.full((2, 1), value).bfloat16().float().numpy()
    assert as_numbers(rounded).tobytes() == expected.tobytes()
    assert as_numbers(rounded).shape == (2, 1)
