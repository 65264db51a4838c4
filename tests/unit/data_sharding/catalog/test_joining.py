"""Catalogs of several formats and objects in one: each record is read as its own catalog would read it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_sharding import (
    BadRecord,
    Catalog,
    CorruptRecordError,
    PlanError,
    RecordBatch,
    RecordReader,
    ShardLoader,
    ShardPlan,
    write_shards,
)
from data_sharding.sample_random import SampleRandom


class Drawn:
    """Each item is its number and what Python's generator gives."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> dict[str, float]:
        return {"number": float(number), "drawn": random.random()}


class Refusing(list[float]):
    def __getitem__(self, number: Any) -> Any:
        if number == 2:
            raise BadRecord("it is the third")
        return super().__getitem__(number)


@pytest.fixture
def catalogs(tmp_path: Path) -> list[Catalog]:
    write_shards(tmp_path / "a", "n", [b"a%d" % n for n in range(15)], 2)
    np.save(tmp_path / "b.npy", np.array([[ord("b"), ord("0") + n] for n in range(9)], np.uint8))
    last = Catalog.of([b"c0", b"c1", b"c2"], version="1")
    return [Catalog.index(tmp_path / "a"), Catalog.index(tmp_path / "b.npy"), last]


def payloads(catalog: Catalog) -> list[bytes]:
    with RecordReader(catalog) as reader:
        return [bytes(payload) for payload in reader.read(np.arange(len(catalog)))]


def test_records_are_those_of_the_catalogs_in_any_order_and_part(catalogs: list[Catalog]) -> None:
    expected = [payload for catalog in catalogs for payload in payloads(catalog)]
    joined = Catalog.concat(*catalogs)
    assert payloads(joined) == expected
    chosen = np.random.default_rng(1).permutation(len(joined))[:20]
    assert payloads(joined.take(chosen)) == [expected[number] for number in chosen]
    assert payloads(Catalog.concat(Catalog.concat(*catalogs[:2]), catalogs[2])) == expected
    first, rest = joined.split(0.5, seed=3)
    assert sorted(payloads(first) + payloads(rest)) == sorted(expected)


def test_places_are_named_as_the_catalogs_name_them(catalogs: list[Catalog], tmp_path: Path) -> None:
    joined = Catalog.concat(*catalogs)
    expected = [catalog.describe(number) for catalog in catalogs for number in range(len(catalog))]
    assert [joined.describe(number) for number in range(len(joined))] == expected
    joined.save(tmp_path / "joined.npz")
    loaded = Catalog.load(tmp_path / "joined.npz")
    assert [loaded.describe(number) for number in range(len(joined))] == expected
    assert loaded.fingerprint == joined.fingerprint
    assert payloads(loaded.take(np.arange(24))) == payloads(joined)[:24]


def test_a_decode_function_is_told_where_records_come_from(catalogs: list[Catalog]) -> None:
    def decode(records: RecordBatch) -> dict[str, NDArray[Any]]:
        assert records.sources is not None
        letters = [bytes(record)[:1] for record in records]
        assert letters == [b"abc"[source : source + 1] for source in records.sources]
        return {"source": records.sources, "number": np.array([int(bytes(record)[1:]) for record in records])}

    joined = Catalog.mix({catalogs[0]: 0.5, catalogs[1]: 0.3, catalogs[2]: 0.2}, epoch="all seen")
    plan = ShardPlan.for_catalog(joined, global_batch=6, seed=0, epoch=0)
    with RecordReader(joined) as reader, ShardLoader(plan, reader, decode, rank=0, size=1, processes=1) as loader:
        sources = np.concatenate([batch.features["source"][batch.weights > 0] for batch in loader])
    assert np.bincount(sources).tolist() == [15, 9, 6]


def test_items_of_several_objects_become_arrays_with_draws_of_their_own() -> None:
    joined = Catalog.concat(Catalog.of(Drawn(), version="1"), Catalog.of(Drawn(), version="2"))
    assert joined.format.draws
    ids = np.array([3, 25, 39, 0])
    with RecordReader(joined) as reader:
        records = reader.load(ids, SampleRandom(1, 2, ids))
        again = reader.load(ids[::-1], SampleRandom(1, 2, ids[::-1]))
    assert records.collate is not None
    arrays = records.collate(records.payloads)
    assert arrays["number"].tolist() == [3, 5, 19, 0]
    assert again.collate is not None
    assert again.collate(again.payloads)["drawn"][::-1].tolist() == arrays["drawn"].tolist()
    assert len(set(arrays["drawn"].tolist())) == 4


def test_sources_are_the_places_of_the_catalogs_whatever_their_formats(catalogs: list[Catalog]) -> None:
    first, second, _ = catalogs
    for parts in ((first, first), (first, second), (Catalog.concat(first, second), second)):
        joined = Catalog.concat(*parts).take(np.arange(len(parts[0]) + 3))
        with RecordReader(joined) as reader:
            sources = reader.load(np.arange(len(joined))).sources
        assert sources is not None
        assert sources.tolist() == [0] * len(parts[0]) + [1] * 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"names": ("image", "label")}, {"names": ("label", "image")}),
        ({"names": ("a", "b"), "pad": {"a": 0}}, {"names": ("a", "b")}),
        ({"names": ("a", "b"), "collate_fn": list}, {"names": ("a", "b"), "collate_fn": tuple}),
    ],
)
def test_objects_that_become_arrays_in_unlike_ways_are_not_joined(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    items = [([1.0], [2.0]), ([3.0], [4.0])]
    with pytest.raises(PlanError, match="other names, pad, pad_to or collate_fn"):
        Catalog.concat(Catalog.of(items, **first), Catalog.of(items, **second))
    Catalog.concat(Catalog.of(items, **first), Catalog.of(items[:1], **first))


def test_damage_is_named_and_masked_where_it_is(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", "n", [b"%04d" % n for n in range(8)], 1)
    file = next((tmp_path / "a").iterdir())
    joined = Catalog.concat(Catalog.of(Refusing([0.0, 1.0, 2.0]), version="1"), Catalog.index(tmp_path / "a"))
    content = bytearray(file.read_bytes())
    content[content.index(b"0005")] ^= 1
    stat = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with RecordReader(joined) as reader:
        with pytest.raises(CorruptRecordError, match=r"Record 8, in .*tfrecord at byte offset 100,"):
            reader.read(np.array([4, 8]))
        with pytest.raises(CorruptRecordError, match="it is the third"):
            reader.read(np.array([2]))
        assert (reader.raw(3), reader.raw(0)) == (b"0000", b"")
    with RecordReader(joined, on_corrupt="mask") as reader:
        records = reader.load(np.array([1, 2, 5, 8]))
    assert records.intact.tolist() == [True, False, True, False]


def test_bytes_of_files_need_a_decode_function(catalogs: list[Catalog]) -> None:
    joined = Catalog.concat(*catalogs)
    with RecordReader(joined) as reader:
        records = reader.load(np.array([0, 26]))
    assert records.collate is not None
    with pytest.raises(PlanError, match="tfrecord and npz and object are joined"):
        records.collate(records.payloads)
