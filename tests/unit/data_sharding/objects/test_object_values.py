"""Values of items that batches must not change, and what a fingerprint sees of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image

from data_sharding import BadRecord, Catalog, PackedSequences, PlanError, RecordReader, UnlikeItemsError


def batch(items: Any, of: list[int]) -> dict[str, Any]:
    """The items with these numbers."""
    with RecordReader(Catalog.of(items)) as reader:
        records = reader.load(np.array(of))
        assert records.collate is not None
        return records.collate(records.payloads)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (np.array([1], np.int16), np.array([70_000], np.int32)),
        (np.array([1], np.int8), np.array([200], np.uint8)),
        (np.array([1], np.uint8), np.array([300], np.uint16)),
        (np.array([1], np.float16), np.array([1e6], np.float64)),
    ],
)
def test_a_number_that_the_first_items_dtype_does_not_hold_is_refused(first: Any, other: Any) -> None:
    with pytest.raises(UnlikeItemsError, match="All batches have the dtypes of the first item"):
        batch([{"x": first}, {"x": other}], of=[1])
    assert batch([{"x": first}, {"x": other.dtype.type(7).reshape(1)}], of=[1])["x"].dtype == first.dtype


def test_a_number_beside_a_list_is_refused_with_a_sentence() -> None:
    with pytest.raises(UnlikeItemsError, match=r"'x' has the shape \[\] in one item, and \[2\] in another"):
        batch([{"x": 1}, {"x": [1, 2]}], of=[0, 1])


@pytest.mark.parametrize("given", [{"labels": [1, 2**63 + 1]}, {"lengths": [1, 2**63 + 1]}])
def test_numbers_above_int64_are_refused(given: dict[str, Any]) -> None:
    numbers = {name: np.array(value, np.uint64) for name, value in given.items()}
    with pytest.raises(PlanError, match=f"The {next(iter(given))} reach 9223372036854775809"):
        Catalog.of([1, 2], **numbers)
    with pytest.raises(PlanError, match="reach 9223372036854775809"):
        Catalog.of([1, 2]).with_labels(np.array([1, 2**63 + 1], np.uint64))


_STRUCT = pa.struct([("a", pa.int64())])
_FULL: dict[str, Any] = {"a": 2**60 + 1}
_NULL: dict[str, Any] = {"a": None}


def _of_pandas(values: list[Any], kind: Any) -> Any:
    return pd.DataFrame({"x": pd.array(values, dtype=pd.ArrowDtype(kind))})


def _of_arrow(values: list[Any], kind: Any) -> Any:
    return pa.table({"x": pa.array(values, kind)})


@pytest.mark.parametrize(
    "table",
    [
        lambda: _of_pandas([[1.0, 2.0], [3.0, None]], pa.list_(pa.float64())),
        lambda: _of_pandas([_FULL, _NULL], _STRUCT),
        lambda: _of_pandas([[_FULL], [_NULL]], pa.list_(_STRUCT)),
        lambda: pl.DataFrame({"x": [[{"a": 1.0, "b": 3}], [{"a": None, "b": 4}]]}),
        lambda: pa.table({"x": pa.DictionaryArray.from_arrays([0, 1], [1, None])}),
        lambda: _of_arrow([[_FULL], [_NULL]], pa.list_(_STRUCT)),
        lambda: _of_arrow([[_FULL, None]], pa.list_(_STRUCT)),
        lambda: _of_arrow([[{"b": [_NULL]}]], pa.list_(pa.struct([("b", pa.list_(_STRUCT))]))),
        lambda: _of_arrow([[("k", _FULL)], [("k", _NULL)]], pa.map_(pa.string(), _STRUCT)),
        lambda: _of_arrow([[_FULL], [_NULL], [_FULL]], pa.list_(_STRUCT)).slice(1),
        lambda: _of_arrow([[1, 2], [3, None]], pa.fixed_shape_tensor(pa.int64(), [2])),
    ],
)
def test_nulls_inside_of_values_are_found(table: Callable[[], Any]) -> None:
    with pytest.raises(PlanError, match="'x' of the table has nulls"):
        Catalog.of(table())


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (lambda: pa.table({"y": [1, 2], "x": pa.RunEndEncodedArray.from_arrays([1, 2], [5, 7])}), "run_end_encoded<"),
        (
            lambda: pa.table({"x": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([5])])}),
            "sparse_union<",
        ),
        (lambda: _of_arrow([["a"]], pa.list_(pa.string_view())), "list<item: string_view>"),
        (lambda: _of_pandas(["a"], pa.string_view()), r"string_view\[pyarrow\]"),
        (lambda: pl.DataFrame({"y": [1], "x": pl.Series([2], dtype=pl.Int128)}), "Int128"),
    ],
)
def test_a_type_of_which_no_row_can_be_read_is_refused_with_the_columns_name(
    table: Callable[[], Any], kind: str
) -> None:
    with pytest.raises(PlanError, match=rf"^The column 'x' of the table has the type {kind}.*\n.*cast it"):
        Catalog.of(table())


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_texts_of_views_are_read_as_others(kind: Any) -> None:
    values = (
        ["short", "longer than twelve bytes"] if kind == pa.string_view() else [b"a\0", b"longer than twelve bytes"]
    )
    table = pa.table({"y": [1, 2], "x": pa.chunked_array([pa.array([value], kind) for value in values])})
    assert batch(table, of=[1, 0])["x"].tolist() == values[::-1]


def test_nulls_outside_of_a_slice_are_not_its_own() -> None:
    lists = _of_arrow([[_NULL], [_FULL], [_FULL], [_NULL]], pa.list_(_STRUCT)).slice(1, 2)
    maps = _of_arrow([[("k", _NULL)], [("k", _FULL)], [("k", _FULL)]], pa.map_(pa.string(), _STRUCT)).slice(1, 2)
    for rows in (lists, maps):
        assert len(Catalog.of(rows)) == 2


def test_a_column_that_a_format_of_hugging_face_hides_gives_labels_all_the_same() -> None:
    import datasets

    data = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [3, 4]})
    for made in (data.with_format("numpy", columns=["x"]), data.with_transform(lambda rows: {"x": rows["x"]})):
        assert Catalog.of(made, labels="label").labels.tolist() == [3, 4]  # type: ignore[union-attr]


def test_versions_that_differ_before_a_slash_are_others() -> None:
    old, new = (Catalog.of([1, 2], version=version) for version in ("s3://b/11/train", "s3://b/12/train"))
    assert old.fingerprint != new.fingerprint
    assert Catalog.concat(old, old).fingerprint != Catalog.concat(old, new).fingerprint


@pytest.mark.parametrize(
    "values",
    [
        lambda shade: [Image.new("L", (4, 4), shade)],
        lambda shade: [datetime.datetime(2026, 1, shade)],
        lambda shade: [Decimal(shade), 3j],
        lambda shade: [frozenset({"a", "b", str(shade)})],
        lambda shade: [Path(str(shade))],
    ],
)
def test_a_fingerprint_sees_what_items_are(values: Callable[[int], list[Any]]) -> None:
    first, same, other = (Catalog.of(values(shade), version=None).fingerprint for shade in (1, 1, 2))
    assert first == same
    assert first != other


class Sequences:
    """Five sequences, of which one cannot be made."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> list[int]:
        if number == 2:
            raise BadRecord("there is nothing in it")
        return [number] * 3


def test_a_sequence_that_cannot_be_made_spoils_no_other_one() -> None:
    rows = PackedSequences(Sequences(), 6)
    catalog = Catalog.of(rows)
    with RecordReader(catalog, on_corrupt="mask") as reader:
        records = reader.load(np.arange(len(catalog)))
    assert sorted(number for row in rows.members for number in row.tolist()) == [0, 1, 2, 3, 4]
    assert [row.tolist() == [2] for row in rows.members] == (~records.intact).tolist()


BYTES = [b"\1\2\0\0", b"\5\0", b"\7"]


def lists_of_bytes() -> list[list[bytes]]:
    return [[each, each] for each in BYTES]


@pytest.mark.parametrize(
    "items",
    [
        {"x": BYTES},
        {"x": lists_of_bytes()},
        [{"x": each} for each in lists_of_bytes()],
        pd.DataFrame({"x": lists_of_bytes()}),
        pl.DataFrame({"x": lists_of_bytes()}),
    ],
)
def test_bytes_keep_the_zeros_at_their_end(items: Any) -> None:
    assert batch(items, of=[2, 0, 1])["x"].reshape(3, -1)[:, 0].tolist() == [BYTES[2], BYTES[0], BYTES[1]]


def test_structs_in_lists_of_polars_keep_their_names() -> None:
    boxes = [[{"x": 1, "score": 0.5}], [{"x": 3, "score": 0.25}]]
    made = batch(pl.DataFrame({"boxes": boxes}), of=[1])["boxes"]
    assert made.dtype == object
    assert made.tolist() == [boxes[1]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2**63 + 5, 7], "'x' has the whole number 9223372036854775813, which int64 does not have"),
        ([1e300, float("nan")], "'x' has the number 1e\\+300, which float32 does not have"),
        (["a", 3], "'x' has texts and 3"),
    ],
)
def test_what_numpy_would_change_without_a_word_is_refused(values: list[Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Catalog.of({"x": values})
    with pytest.raises(PlanError, match=words):
        batch([{"x": values}], of=[0])
    fine = batch({"x": [1e30, float("inf"), float("nan")]}, of=[0, 1, 2])["x"]
    assert (fine.dtype, fine[1], np.isnan(fine[2])) == (np.float32, np.inf, True)


@pytest.mark.parametrize(
    "wrong", [{"names": 5}, {"names": ("a", 5)}, {"collate_fn": 5}, {"pad": {"x": 0}, "pad_to": 2.5}]
)
def test_arguments_of_other_kinds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        Catalog.of([{"x": [1]}], **wrong)


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.eye(2).to_mkldnn()])
def test_a_tensor_of_another_layout_is_refused_with_what_to_do(tensor: torch.Tensor) -> None:
    with pytest.raises(PlanError, match="to_dense"):
        batch([{"x": tensor}], of=[0])


def test_tensors_that_are_conjugated_or_negated_views_are_their_values() -> None:
    views = torch.tensor([[1 + 2j], [3 - 4j]]).conj()
    assert batch({"x": views}, of=[1])["x"].tolist() == [[3 + 4j]]
    assert batch([{"x": each.imag} for each in views], of=[0, 1])["x"].tolist() == [[-2], [4]]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_tensor_of_a_dtype_that_numpy_does_not_have_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(PlanError, match=f"is a tensor of the dtype {dtype}.*\\n.*view\\(torch.uint8\\)"):
        batch([{"x": torch.ones(2).to(dtype)}], of=[0])


@pytest.mark.parametrize("names", [{"a": 0, "b": 0}.keys(), pd.Index(["a", "b"]), np.array(["a", "b"])])
def test_names_may_be_of_any_kind(names: Any) -> None:
    with RecordReader(Catalog.of([(1, 2)], names=names)) as reader:
        records = reader.load(np.array([0]))
        assert records.collate is not None
        assert {name: array.tolist() for name, array in records.collate(records.payloads).items()} == {
            "a": [1],
            "b": [2],
        }


def test_fingerprints_and_types_of_what_numpy_keeps_are_those_of_numpy() -> None:
    """A run that goes on with it would be refused."""
    assert batch({"x": [b"ab", b"c"]}, of=[0, 1])["x"].dtype.kind == "S"
    assert batch(pd.DataFrame({"x": [[0.1, 1e-50], [1.0, 2.0]]}), of=[0, 1])["x"].dtype == np.float64
    ragged = pd.DataFrame({"x": [[[1], [2]], [[1], [2, 3]]]})
    assert batch(ragged, of=[0])["x"].tolist() == [[[1], [2]]]


def test_an_object_of_an_old_kind_is_an_array() -> None:
    class Old:
        def __array__(self) -> Any:
            return np.array([np.nan, 1.0])

    assert batch([{"x": Old()}], of=[0])["x"].dtype == np.float32
