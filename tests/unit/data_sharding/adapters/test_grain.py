"""grain reads a catalog at random, one by one or in batches, in its own threads and processes."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.adapters.grain import DecodedSource, PlanSource, RecordSource

_SUPPORT = str(Path(__file__).parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

import importable_decoders as decoders  # noqa: E402


@pytest.fixture(scope="module")
def grain() -> Any:
    return pytest.importorskip("grain")


def test_records_are_those_of_the_catalog(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    source = RecordSource(catalog)
    assert len(source) == len(by_id)
    assert [source[record] for record in range(len(source))] == by_id
    assert source[np.int64(4)] == by_id[4]
    assert source._getitems([9, np.int32(2), 9]) == [by_id[9], by_id[2], by_id[9]]
    for record in (-1, len(by_id)):
        with pytest.raises(ds.PlanError, match="asked for"):
            source[record]
    with pytest.raises(AttributeError):
        source["4"]  # type: ignore[index]


def test_sources_end_as_sequences_do(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    source = RecordSource(catalog)
    assert list(source) == [*reversed(source)][::-1] == by_id
    assert by_id[-1] in source
    assert b"none" not in source
    assert [row["length"] for row in DecodedSource(catalog, decoders.numbers)] == [len(payload) for payload in by_id]
    with pytest.raises(IndexError):
        source[len(by_id)]


def test_decoded_records_are_rows(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    source = DecodedSource(catalog, decoders.numbers)
    assert len(source) == len(by_id)
    assert [row["length"] for row in source._getitems([9, 2])] == [len(by_id[9]), len(by_id[2])]
    assert source[5]["start"].tolist() == list(by_id[5][:8])


def test_copies_in_other_processes_open_the_files_for_themselves(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    for source in (RecordSource(catalog), DecodedSource(catalog, decoders.numbers)):
        source[3]
        copy = pickle.loads(pickle.dumps(source))
        assert copy._reader.get()._files is not source._reader.get()._files
        assert (len(copy), repr(copy)) == (len(source), repr(source))
    assert pickle.loads(pickle.dumps(RecordSource(catalog)))[3] == by_id[3]


def test_the_name_tells_data_apart_and_nothing_else(catalog: ds.Catalog, tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "other", [b"1"] * len(catalog), 1)
    other = ds.Catalog.index(tmp_path)
    assert repr(RecordSource(catalog)) == repr(RecordSource(catalog)) != repr(RecordSource(other))
    ours, theirs = DecodedSource(catalog, decoders.numbers), DecodedSource(other, decoders.numbers)
    assert repr(ours) != repr(theirs)
    assert "numbers" in repr(DecodedSource(catalog, decoders.numbers))
    assert " at 0x" not in repr(DecodedSource(catalog, decoders.Decoder(2).decode))


def test_damage_is_found(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    path = sorted(folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    catalog = ds.Catalog.index(folder)
    last = int(np.flatnonzero(catalog.file_ids == 0)[-1])
    for source in (RecordSource(catalog), DecodedSource(catalog, decoders.numbers)):
        source[last - 1]
        with pytest.raises(ds.CorruptRecordError, match=f"Record {last}"):
            source[last]
    assert len(RecordSource(catalog, check_crc=False)[last]) == catalog.lengths[last]


def test_grains_data_sets_read_it(grain: Any, catalog: ds.Catalog, by_id: list[bytes]) -> None:
    data = grain.MapDataset.source(RecordSource(catalog))
    assert list(data) == by_id
    assert sorted(data.shuffle(seed=3)) == sorted(by_id)
    assert data._getitems([7, 8]) == by_id[7:9]
    batched = grain.MapDataset.source(DecodedSource(catalog, decoders.numbers)).batch(10)
    assert np.concatenate([batch["length"] for batch in batched]).tolist() == [len(payload) for payload in by_id]


@pytest.mark.parametrize("workers", [0, 2])
def test_grains_loader_reads_it_and_resumes(grain: Any, catalog: ds.Catalog, workers: int) -> None:
    sampler = grain.samplers.IndexSampler(num_records=len(catalog), num_epochs=1, shuffle=True, seed=4)
    loader = grain.DataLoader(
        data_source=DecodedSource(catalog, decoders.numbers), sampler=sampler, worker_count=workers
    )
    whole = [int(row["length"]) for row in loader]
    assert sorted(whole) == sorted(catalog.lengths.tolist())
    begun = iter(loader)
    taken = [int(next(begun)["length"]) for _ in range(5)]
    state = begun.get_state()
    resumed = iter(loader)
    resumed.set_state(state)
    assert taken + [int(row["length"]) for row in resumed] == whole


def test_steps_of_a_plan_are_resumed_by_another_number_of_ranks(grain: Any, catalog: ds.Catalog) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=7, seed=2, epoch=3)
    expected = [
        batch.ids.tolist()
        for epoch in (3, 4)
        for batch in map(dataclasses.replace(plan, epoch=epoch).batch, range(plan.steps))
    ]

    def batches(rank: int, size: int) -> Any:
        source = PlanSource(plan, ds.RecordReader(catalog), decoders.numbers, rank=rank, size=size, epochs=2)
        return iter(grain.MapDataset.source(source).to_iter_dataset())

    begun = [batches(rank, 2) for rank in range(2)]
    taken = [np.concatenate([next(each).ids for each in begun]).tolist() for _ in range(plan.steps + 2)]
    resumed = [batches(rank, 3) for rank in range(3)]
    for each in resumed:
        each.set_state(begun[0].get_state())
    rest = [np.concatenate([part.ids for part in parts]).tolist() for parts in zip(*resumed, strict=True)]
    assert taken + rest == expected


def test_steps_of_a_plan_are_named_by_all_that_decides_about_them(catalog: ds.Catalog) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=7, seed=2, epoch=0)
    reader = ds.RecordReader(catalog)
    one = PlanSource(plan, reader, decoders.numbers, rank=0, size=1)
    assert repr(one) == repr(pickle.loads(pickle.dumps(PlanSource(plan, reader, decoders.numbers, rank=1, size=2))))
    assert repr(one) != repr(PlanSource(dataclasses.replace(plan, seed=3), reader, decoders.numbers, rank=0, size=1))
    with pytest.raises(IndexError):
        one[plan.steps]
    with pytest.raises(ds.PlanError, match="Rank 2"):
        PlanSource(plan, reader, decoders.numbers, rank=2, size=2)
