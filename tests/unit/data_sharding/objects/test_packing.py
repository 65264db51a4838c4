"""Sequences in rows: each once, whole, in few rows, and as data of a plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import Catalog, PackedSequences, PlanError, RecordReader, UnlikeItemsError

LENGTHS = st.lists(st.integers(1, 32), min_size=1, max_size=80)


@given(LENGTHS)
def test_each_sequence_is_in_one_row_as_it_is(lengths: list[int]) -> None:
    sequences = [np.arange(length) + 1000 * number for number, length in enumerate(lengths)]
    rows = PackedSequences(sequences, 32, pad=-1)
    assert sorted(np.concatenate(rows.members).tolist()) == list(range(len(lengths)))
    for row, members in zip(rows, rows.members, strict=True):
        for segment, number in enumerate(members, start=1):
            inside = row["segments"] == segment
            assert row["tokens"][inside].tolist() == sequences[number].tolist()
            assert row["positions"][inside].tolist() == list(range(lengths[number]))
        assert set(row["tokens"][row["segments"] == 0].tolist()) <= {-1}
    assert len(rows) <= 11 / 9 * (sum(lengths) / 32 + 1) + 1  # the bound of first fit decreasing, roughly


def test_little_is_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 400, 5000)
    rows = PackedSequences([np.zeros(length, np.uint8) for length in lengths], 512, lengths=lengths)
    assert 1 - lengths.sum() / (512 * len(rows)) < 0.01


def test_numbers_of_unlike_types_are_kept() -> None:
    row = PackedSequences([np.arange(3), np.arange(3) / 2], 7)[0]
    assert row["tokens"].tolist() == [0, 1, 2, 0, 0.5, 1, 0]


def test_lengths_may_be_a_column() -> None:
    table = {"tokens": np.array([[1, 2], [3, 4], [5, 6]]), "length": np.array([2, 2, 2])}
    assert len(PackedSequences(table, 4, lengths="length")) == 2


def test_rows_are_items_of_a_catalog() -> None:
    table = {"ids": np.array([[1, 2], [3, 4], [5, 6]])}
    catalog = Catalog.of(PackedSequences(table, 4, part="ids"))
    with RecordReader(catalog) as reader:
        records = reader.load(np.arange(2))
    assert records.collate is not None
    arrays = records.collate(records.payloads)
    assert arrays["ids"].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert arrays["segments"].tolist() == [[1, 1, 2, 2], [1, 1, 0, 0]]


@given(LENGTHS)
def test_what_has_the_shape_of_a_sequence_is_packed_beside_it(lengths: list[int]) -> None:
    items = [{"labels": -np.arange(length) / 2, "tokens": np.arange(length)} for length in lengths]
    for row in PackedSequences(items, 32, pad={"tokens": 7, "labels": -100}):
        inside = row["segments"] > 0
        assert (row["labels"][inside] == -row["tokens"][inside] / 2).all()
        assert (row["labels"][~inside] == -100).all()
        assert (row["tokens"][~inside] == 7).all()


def test_a_column_of_lengths_is_not_packed() -> None:
    table = {"tokens": np.array([[1, 2], [3, 4]]), "length": np.array([2, 2])}
    assert PackedSequences(table, 4, lengths="length")[0].keys() == {"tokens", "segments", "positions"}


def beside(**parts: object) -> PackedSequences:
    return PackedSequences([{"tokens": [1, 2], **parts}] * 2, 8)


def padded_by(pad: object) -> object:
    return PackedSequences([{"tokens": [1, 2], "labels": [3, 4]}], 8, pad=pad)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PackedSequences([[1, 2, 3], [1]], 2), "Sequence 0 has 3 tokens"),
        (lambda: PackedSequences([[1], []], 2), "Sequence 1 has 0 tokens"),
        (lambda: PackedSequences([{"a": [1]}], 2), "and no 'tokens'"),
        (lambda: PackedSequences([[1], [2]], 2, lengths=[1]), r"shape \[1\]"),
        (lambda: PackedSequences({"tokens": np.ones((2, 2))}, 2, lengths="length"), "no column 'length'"),
        (lambda: PackedSequences([[1]], 0), "size is 0"),
        (lambda: PackedSequences(["abc"], 8), "'tokens' of item 0 is <U3"),
        (lambda: PackedSequences(np.arange(5), 8), "'tokens' of item 0 is int64 of shape"),
        (lambda: PackedSequences([[1]], 2, pad=float("nan"))[0], "filled up with nan"),
        (lambda: PackedSequences([[1, 2], [3]], 2, lengths=[1, 1])[0], "longer than `lengths` said"),
        (lambda: beside(label=3), r"'label' of item 0 is int64 of shape \[\], and 'tokens' has the shape \[2\]"),
        (lambda: beside(labels=[3]), r"'labels' of item 0 is int64 of shape \[1\]"),
        (lambda: beside(mask=[[1, 0], [1, 1]]), r"'mask' of item 0 is int64 of shape \[2, 2\]"),
        (lambda: beside(words=["a", "b"]), "'words' of item 0 is <U1"),
        (lambda: beside(segments=[1, 1]), "Items have a part 'segments'"),
        (lambda: PackedSequences([[1, 2], [3]], 4, part="segments"), "Items have a part 'segments'"),
        (lambda: padded_by({"tokens": 0}), "pad names 'tokens', and items have 'tokens', 'labels'"),
        (lambda: padded_by({"tokens": 0, "labels": None}), "'labels' is to be padded with None"),
    ],
)
def test_what_cannot_be_packed_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()


def test_sequences_of_a_row_have_the_same_parts() -> None:
    rows = PackedSequences([{"tokens": [1, 2], "labels": [3, 4]}, {"tokens": [1, 2]}], 8)
    with pytest.raises(UnlikeItemsError, match="Items of one row have different parts: 'labels' is in some only"):
        rows[0]
