"""tf.train.Example: what goes in comes out, in the kinds of the original. TensorFlow itself is asked elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import ExampleError, example

int64s = st.integers(-(2**63), 2**63 - 1)
float32s = st.floats(width=32, allow_nan=False)
values = (
    st.lists(st.binary(max_size=20), min_size=1, max_size=5)
    | st.lists(int64s, min_size=1, max_size=5)
    | st.lists(float32s, min_size=1, max_size=5)
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=5))
def test_round_trip(features: dict[str, list[object]]) -> None:
    decoded = example.decode(example.encode(features))
    assert {name: list(value) for name, value in decoded.items()} == features
    for name, value in features.items():
        expected = {bytes: list, int: np.dtype(np.int64), float: np.dtype(np.float32)}[type(value[0])]
        assert getattr(decoded[name], "dtype", type(decoded[name])) == expected


@pytest.mark.parametrize(
    ("given_value", "stored"),
    [
        (b"raw", [b"raw"]),
        ("täxt", ["täxt".encode()]),
        (["a", b"b"], [b"a", b"b"]),
        (7, np.array([7])),
        (True, np.array([1])),
        (np.uint8(7), np.array([7])),
        (0.5, np.array([0.5], np.float32)),
        ([1, 0.5], np.array([1, 0.5], np.float32)),
        (np.arange(6).reshape(2, 3).T, np.array([0, 3, 1, 4, 2, 5])),
        (np.array([[0.1]], np.float64), np.array([0.1], np.float32)),
        (np.zeros(0, np.int32), np.zeros(0, np.int64)),
        (np.zeros(0, np.float16), np.zeros(0, np.float32)),
        ([], []),
    ],
)
def test_kinds_of_values(given_value: example.FeatureInput, stored: example.Feature) -> None:
    (decoded,) = example.decode(example.encode({"x": given_value})).values()
    assert type(decoded) is type(stored)
    assert list(decoded) == list(stored)
    assert getattr(decoded, "dtype", None) == getattr(stored, "dtype", None)


def test_special_floats_survive() -> None:
    decoded = example.decode(example.encode({"x": [math.inf, -math.inf, math.nan, -0.0]}))["x"]
    assert str(decoded) == str(np.array([math.inf, -math.inf, math.nan, -0.0], np.float32))


@pytest.mark.parametrize("value", [2**63, np.array([2**64 - 1], np.uint64)])
def test_integers_beyond_64_bits_and_a_sign_are_named(value: int | np.ndarray) -> None:
    with pytest.raises(ExampleError, match="Feature 'x' has the value (9223372036854775808|18446744073709551615)"):
        example.encode({"x": value})


@pytest.mark.parametrize("value", [1j, None, {"a": 1}, [b"a", 1], object()])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ExampleError, match="Feature 'x'"):
        example.encode({"x": value})  # type: ignore[dict-item]


def test_float64_is_kept_on_request_and_other_readers_find_float32() -> None:
    values = np.array([[0.1, 1e300], [16777217.0, 2.0]])
    record = example.encode({"x": values, "y": np.float32([0.1]), "z": [0.1]}, keep_float64=True)
    decoded = example.decode(record)
    assert (decoded["x"].dtype, decoded["x"].tolist()) == (np.float64, values.ravel().tolist())  # type: ignore[union-attr]
    assert decoded["y"].dtype == decoded["z"].dtype == np.float32  # type: ignore[union-attr]
    rounded = example.encode({"x": values, "y": np.float32([0.1]), "z": [0.1]})
    assert len(rounded) < len(record)
    # Another program has written other floats into the record, and taken the field that it does not know along.
    other = record.replace(np.float32([2.0]).tobytes(), np.float32([3.0]).tobytes())
    assert other != record
    assert example.decode(other)["x"].tolist()[2:] == [16777216.0, 3.0]  # type: ignore[union-attr]


def feature_x(float_list: bytes) -> bytes:
    """An Example with one feature 'x', whose FloatList has these bytes; field numbers as in feature.proto."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    return field(1, field(1, field(1, b"x") + field(2, field(2, float_list))))


def test_floats_in_all_legal_encodings() -> None:
    packed = np.array([1.5, -2], "<f4").tobytes()
    singles = b"".join(b"\x0d" + packed[begin : begin + 4] for begin in (0, 4))
    two_runs = b"\x0a\x04" + packed[:4] + b"\x0a\x04" + packed[4:]
    for form in (b"\x0a\x08" + packed, singles, two_runs):
        decoded = example.decode(feature_x(form))["x"]
        assert decoded.tolist() == [1.5, -2]  # type: ignore[union-attr]
        assert decoded.dtype == np.float32  # type: ignore[union-attr]


@pytest.mark.parametrize("form", [b"\x0a\x03abc", b"\x0a\x04abcd\x0dabcd"])
def test_floats_in_doubtful_encodings_are_refused(form: bytes) -> None:
    with pytest.raises(ExampleError, match="float values of feature 'x'"):
        example.decode(feature_x(form))


@pytest.mark.parametrize("record", [b"\xff", b"\x0a\x05ab"])
def test_other_bytes_are_refused(record: bytes) -> None:
    with pytest.raises(ExampleError, match=r"not a tf\.train\.Example"):
        example.decode(record)


def test_a_batch_is_stacked() -> None:
    records = [example.encode({"image": np.full((2, 2), n / 2), "label": n, "name": f"n{n}"}) for n in range(3)]
    batch = example.decode_batch(records)
    assert batch["image"].tolist() == [[n / 2] * 4 for n in range(3)]
    assert batch["label"].tolist() == [[0], [1], [2]]
    assert batch["name"].tolist() == [[b"n0"], [b"n1"], [b"n2"]]
    assert (batch["image"].dtype, batch["label"].dtype) == (np.float32, np.int64)
    assert example.decode_batch([]) == {}


@pytest.mark.parametrize("other", [{"x": [1, 2]}, {"x": 1.0}, {"x": b"a"}, {"y": 1}, {}, {"x": 1, "y": 1}])
def test_uneven_batches_are_refused(other: dict[str, example.FeatureInput]) -> None:
    for records in ([{"x": 1}, other], [other, {"x": 1}]):
        with pytest.raises(ExampleError, match="differ in"):
            example.decode_batch([example.encode(features) for features in records])
