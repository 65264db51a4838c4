"""Steps from remote files: read ahead within a budget of bytes, as many at a time as pays, with the same batches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.range_server import RangeServer, serving

import data_sharding as ds
from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.read_ahead import StepReads, Width

WAIT_S = 60.0


@pytest.fixture(scope="module")
def store(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    with serving(Path(shutil.copytree(data_folder, tmp_path_factory.mktemp("store") / "data"))) as server:
        yield server


@pytest.fixture(scope="module")
def remote(store: RangeServer) -> ds.Catalog:
    return ds.Catalog.index([f"{store.url}/{path.name}" for path in sorted(store.folder.iterdir())])


def decode(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    return {"payload": np.array(payloads, object)}


def plan_for(catalog: ds.Catalog, global_batch: int) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, global_batch=global_batch, seed=5, epoch=1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 3), st.sampled_from([0, 1, 1000, 1 << 26]), st.integers(0, 100))
def test_batches_are_those_of_the_plan_however_far_it_reads_ahead(
    remote: ds.Catalog, by_id: list[bytes], global_batch: int, threads: int, read_ahead: int, start: int
) -> None:
    plan = plan_for(remote, global_batch)
    options: dict[str, Any] = {"threads": threads, "read_ahead": read_ahead, "timeout_s": WAIT_S}
    start %= plan.steps + 1
    with (
        ds.RecordReader(remote) as reader,
        ds.ShardLoader(plan, reader, decode, rank=0, size=1, start_step=start, **options) as loader,
    ):
        batches = list(loader)
    assert [batch.step for batch in batches] == list(range(start, plan.steps))
    for batch in batches:
        expected = plan.shard(0, 1, batch.step)
        assert batch.ids.tolist() == expected.ids.tolist()
        assert batch.features["payload"].tolist() == [by_id[i] for i in batch.ids]


def test_an_error_of_reading_comes_at_its_step(remote: ds.Catalog, store: RangeServer) -> None:
    plan = plan_for(remote, 4)
    lost = remote.files[2].path.rpartition("/")[2]
    first = next(step for step in range(plan.steps) if (remote.file_ids[plan.shard(0, 1, step).ids] == 2).any())
    content = (store.folder / lost).read_bytes()
    (store.folder / lost).unlink()
    try:
        with ds.RecordReader(remote) as reader:
            loader = ds.ShardLoader(plan, reader, decode, rank=0, size=1, threads=3, timeout_s=WAIT_S)
            for step in range(first):
                assert next(loader).step == step
            with pytest.raises(ds.ChangedDataError, match=f"{lost} has gone") as caught:
                next(loader)
            assert f"while loading step {first} of" in "".join(caught.value.__notes__)
            loader.close()
    finally:
        (store.folder / lost).write_bytes(content)


def records_of(size: int) -> RecordBatch:
    return RecordBatch([bytes(size)], np.zeros(1, np.int64), None, np.ones(1, np.bool_))


@given(st.integers(1, 1000), st.integers(1, 5000))
@settings(max_examples=20, deadline=None)
def test_no_more_than_the_budget_is_ahead(size: int, budget: int) -> None:
    lock, ahead, most = threading.Lock(), 0, 0

    def read(_: int) -> RecordBatch:
        nonlocal ahead, most
        with lock:
            ahead += size
            most = max(most, ahead)
        return records_of(size)

    reads = StepReads(read, 0, 30, budget=budget, timeout_s=WAIT_S)
    for step in range(30):
        assert len(reads.get(step)[0]) == size
        with lock:
            ahead -= size
    reads.close()
    # Two are under way before the size of any is known.
    assert most <= max(budget + size, 3 * size)


class Network:
    """Time in which steps come: `together` of them at a time at most, each after `latency_s`."""

    def __init__(self, latency_s: float, together: float) -> None:
        self.latency_s, self.together, self.now = latency_s, together, 0.0

    def step(self, width: int) -> float:
        self.now += self.latency_s / min(width, self.together)
        return self.now


def test_more_steps_are_read_at_a_time_while_that_pays() -> None:
    width, fast = Width(), Network(0.04, 1000)
    for _ in range(200):
        width.note(True, fast.step(width.steps))
    assert width.steps == 16


def test_a_client_that_is_busy_reads_no_further_ahead() -> None:
    width, busy, seen = Width(), Network(0.04, 2), []
    for _ in range(300):
        width.note(True, busy.step(width.steps))
        seen.append(width.steps)
    assert seen.count(2) > 0.8 * len(seen)
    assert max(seen) <= 4


def test_a_consumer_that_never_waits_changes_nothing() -> None:
    width, fast = Width(), Network(0.04, 1000)
    for _ in range(200):
        width.note(False, fast.step(width.steps))
    assert width.steps == 1
