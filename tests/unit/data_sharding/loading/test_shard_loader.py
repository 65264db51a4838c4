"""The loader gives what plan and reader give, in order, at any depth, from any start, and ends cleanly."""

from __future__ import annotations

import gc
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.loading.decoding import read_and_decode

_SUPPORT = str(Path(__file__).parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

import importable_decoders as decoders  # noqa: E402

WAIT_S = 60.0


def decode(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    return {"length": np.array([len(payload) for payload in payloads]), "payload": np.array(payloads, object)}


def decode_slowly(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    """A thread makes batches that take less than this together, and is soon through with the epoch."""
    time.sleep(0.002)
    return decode(payloads)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("data_sharding-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in loader_threads():
        thread.join(WAIT_S)
    assert loader_threads() == []


def plan_for(catalog: ds.Catalog, **changes: object) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, **{"global_batch": 8, "seed": 5, "epoch": 1, **changes})  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_equals_plan_and_reader_from_every_start(
    catalog: ds.Catalog, global_batch: int, prefetch: int, threads: int, size: int, data: st.DataObject
) -> None:
    size = min(size, global_batch)
    rank = data.draw(st.integers(0, size - 1))
    plan = plan_for(catalog, global_batch=global_batch)
    start = data.draw(st.integers(0, plan.steps))
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(
            plan,
            reader,
            decode,
            rank=rank,
            size=size,
            start_step=start,
            prefetch=prefetch,
            threads=threads,
            timeout_s=WAIT_S,
        ) as loader,
    ):
        batches = list(loader)
        assert [batch.step for batch in batches] == list(range(start, plan.steps))
        for batch in batches:
            ids, weights = plan.shard(rank, size, batch.step)
            assert np.array_equal(batch.ids, ids)
            assert np.array_equal(batch.weights, weights)
            assert batch.features["payload"].tolist() == reader.read(ids)
            assert batch.global_weight == plan.global_weight(batch.step)
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("start", [0, 3, 8])
@pytest.mark.parametrize("processes", [0, 1])
def test_each_pass_is_the_next_epoch(catalog: ds.Catalog, start: int, processes: int) -> None:
    plans = [plan_for(catalog, epoch=epoch) for epoch in range(1, 4)]
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(
            plans[0], reader, decoders.numbers, rank=1, size=2, start_step=start, augment=True, processes=processes
        ) as loader,
    ):
        for plan, first in zip(plans, (start, 0, 0), strict=True):
            taken = [(batch.step, batch.ids.tolist(), batch.features["draws"].tolist()) for batch in loader]
            assert loader.plan == plan
            assert [(step, ids) for step, ids, _ in taken] == [
                (step, plan.shard(1, 2, step).ids.tolist()) for step in range(first, plan.steps)
            ]
            for _, ids, draws in taken:
                random = ds.SampleRandom(plan.seed, plan.epoch, np.array(ids))
                assert draws == random.uniform("x", shape=(2,)).astype(np.float32).tolist()
    with pytest.raises(ds.PlanError, match="closed"):
        list(loader)


def test_going_on_after_a_break_is_the_same_epoch(catalog: ds.Catalog) -> None:
    plan = plan_for(catalog)
    with ds.RecordReader(catalog) as reader, ds.ShardLoader(plan, reader, decode, rank=0, size=1) as loader:
        assert next(loader).step == 0
        for batch in loader:
            if batch.step == 3:
                break
        assert [batch.step for batch in loader] == [4, 5, 6, 7]
        assert loader.plan == plan


def test_a_long_epoch_is_planned_in_blocks_without_seams(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "a", (number.to_bytes(2, "little") for number in range(10_000)), 1)
    catalog = ds.Catalog.index(tmp_path)
    plan = plan_for(catalog)
    expected = [plan.shard(1, 2, step).ids.tolist() for step in range(plan.steps)]
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, decode, rank=1, size=2, prefetch=3, threads=2, timeout_s=WAIT_S) as loader,
    ):
        batches = list(loader)
    assert [batch.ids.tolist() for batch in batches] == expected
    for batch in batches:
        assert [int.from_bytes(payload, "little") for payload in batch.features["payload"]] == batch.ids.tolist()


def test_an_audited_epoch_is_complete_across_a_change_of_size(catalog: ds.Catalog) -> None:
    plan, audits = plan_for(catalog), []
    with ds.RecordReader(catalog) as reader:
        for size, steps in ((4, range(3)), (3, range(3, plan.steps))):
            for rank in range(size):
                audit = ds.CoverageAudit(len(catalog))
                with ds.ShardLoader(plan, reader, decode, rank=rank, size=size, start_step=steps.start) as loader:
                    for _, batch in zip(steps, loader, strict=False):
                        audit.add(batch.ids, batch.weights)
                audits.append(audit.to_array())
    assert ds.CoverageAudit.from_array(np.sum(audits, axis=0, dtype=np.int32)).complete


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("failing", [0, 3, 7])
def test_an_exception_arrives_at_its_own_step(catalog: ds.Catalog, threads: int, failing: int) -> None:
    plan = plan_for(catalog)
    trigger = plan.batch(failing).ids.tolist()

    with ds.RecordReader(catalog) as reader:
        bad = reader.read(np.array(trigger))

        def failing_decode(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
            if list(payloads) == bad:
                raise ArithmeticError("cannot decode")
            return decode(payloads)

        loader = ds.ShardLoader(plan, reader, failing_decode, rank=0, size=1, prefetch=4, threads=threads)
        steps: list[int] = []
        with pytest.raises(ArithmeticError, match="cannot decode") as caught, loader:
            steps.extend(batch.step for batch in loader)
        assert steps == list(range(failing))
        assert caught.value.__notes__[-1] == f"while loading step {failing} of epoch 1 for rank 0 of 1"
        assert "together, with none of them alone" in caught.value.__notes__[0]
        with pytest.raises(
            ds.PlanError, match=rf"closed: batch {failing} ended it with ArithmeticError: cannot decode"
        ):
            next(loader)


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("global_batch", [1, 8])
def test_an_exception_of_decode_names_its_record(catalog: ds.Catalog, processes: int, global_batch: int) -> None:
    chosen = int(np.flatnonzero(catalog.lengths > 100)[0])
    failing = decoders.FailsOn(int(catalog.lengths[chosen]))
    same = np.flatnonzero(catalog.lengths == failing.length)
    plan = plan_for(catalog, global_batch=global_batch)
    with ds.RecordReader(catalog) as reader:
        for kind, decode in ((ArithmeticError, failing.plainly), (ds.ExampleError, failing.in_words)):
            with (
                pytest.raises(kind) as caught,
                ds.ShardLoader(plan, reader, decode, rank=0, size=1, processes=processes) as loader,
            ):
                list(loader)
            first = "first " if global_batch > 1 else ""  # records after it are not looked at
            named = [f"Decoding fails {first}with record {one} ({catalog.describe(one)})." for one in same.tolist()]
            text = caught.value.__notes__[0] if kind is ArithmeticError else str(caught.value)
            assert any(text.startswith(one) for one in named)


def test_an_exception_of_unlike_records_names_two(catalog: ds.Catalog) -> None:
    ids = np.array([3, 4, 5])
    first, second, _ = catalog.lengths[ids].tolist()
    with ds.RecordReader(catalog) as reader, pytest.raises(ValueError, match="inhomogeneous") as caught:
        read_and_decode(reader, decoders.stacked, ids, None)
    assert caught.value.__notes__ == [
        f"Decoding gives 'x' of uint8[{second}] for record 4 ({catalog.describe(4)}), and of uint8[{first}] "
        f"for record 3 ({catalog.describe(3)})."
    ]


def test_after_an_exception_the_threads_end_and_nothing_more_comes(catalog: ds.Catalog) -> None:
    def failing(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        raise ArithmeticError(len(payloads))

    with ds.RecordReader(catalog) as reader:
        loader = ds.ShardLoader(plan_for(catalog), reader, failing, rank=0, size=1, threads=2, timeout_s=WAIT_S)
        with pytest.raises(ArithmeticError):
            next(loader)
        for thread in loader_threads():
            thread.join(WAIT_S)
        assert loader_threads() == []
        with pytest.raises(ds.PlanError, match="closed"):
            next(loader)


def test_a_thread_that_exits_is_seen(catalog: ds.Catalog) -> None:
    def exiting(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        raise SystemExit(len(payloads))

    with (
        ds.RecordReader(catalog) as reader,
        pytest.raises(SystemExit, match="8"),
        ds.ShardLoader(plan_for(catalog), reader, exiting, rank=0, size=1) as loader,
    ):
        next(loader)


def test_damage_is_raised_through_the_loader(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    path = sorted(folder.iterdir())[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    catalog = ds.Catalog.index(folder)
    with (
        ds.RecordReader(catalog) as reader,
        pytest.raises(ds.CorruptRecordError) as caught,
        ds.ShardLoader(plan_for(catalog), reader, decode, rank=0, size=1) as loader,
    ):
        list(loader)
    assert caught.value.path == str(path)


def test_a_stuck_thread_is_reported_where_it_is_stuck(catalog: ds.Catalog) -> None:
    release, entered = threading.Event(), threading.Event()

    def stuck(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        entered.set()
        release.wait(WAIT_S)
        return decode(payloads)

    try:
        with ds.RecordReader(catalog) as reader:
            loader = ds.ShardLoader(plan_for(catalog), reader, stuck, rank=0, size=1, timeout_s=0.05)
            loader.__enter__()
            assert entered.wait(WAIT_S)
            with pytest.raises(ds.LoaderTimeoutError, match=r"Batch 0 was not ready after 0\.05 seconds") as caught:
                next(loader)
            assert "threading.py:" in caught.value.conflict
            loader.close()
    finally:
        release.set()


def test_close_reports_a_thread_that_does_not_end(catalog: ds.Catalog) -> None:
    release, entered = threading.Event(), threading.Event()

    def stuck(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        entered.set()
        release.wait(WAIT_S)
        return decode(payloads)

    try:
        with ds.RecordReader(catalog) as reader:
            loader = ds.ShardLoader(plan_for(catalog), reader, stuck, rank=0, size=1, timeout_s=0.05)
            loader.__enter__()
            assert entered.wait(WAIT_S)
            with pytest.raises(ds.LoaderTimeoutError, match="told to stop"):
                loader.close()
    finally:
        release.set()


def test_reads_ahead_no_further_than_asked(catalog: ds.Catalog) -> None:
    plan = plan_for(catalog, global_batch=4)
    made: list[int] = []
    progress = threading.Condition()

    def counting(payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        with progress:
            made.append(len(payloads))
            progress.notify_all()
        return decode_slowly(payloads)

    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, counting, rank=0, size=1, prefetch=3, threads=2) as loader,
    ):
        for taken in range(plan.steps):
            with progress:
                ahead = min(taken + 3, plan.steps)
                assert progress.wait_for(lambda ahead=ahead: len(made) >= ahead, WAIT_S)
                assert len(made) <= ahead
            next(loader)


def test_closing_early_ends_the_threads_and_the_loader(catalog: ds.Catalog) -> None:
    with ds.RecordReader(catalog) as reader:
        loader = ds.ShardLoader(plan_for(catalog), reader, decode_slowly, rank=0, size=1, threads=2)
        next(loader)
        assert loader_threads() != []
        loader.close()
        loader.close()
        assert loader_threads() == []
        with pytest.raises(ds.PlanError, match="closed"):
            next(loader)


def test_a_dropped_loader_ends_its_threads(catalog: ds.Catalog) -> None:
    with ds.RecordReader(catalog) as reader:
        loader = ds.ShardLoader(plan_for(catalog), reader, decode_slowly, rank=0, size=1, threads=2)
        next(loader)
        threads = loader_threads()
        assert threads != []
        del loader
        gc.collect()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_an_unused_loader_starts_no_thread(catalog: ds.Catalog) -> None:
    with ds.RecordReader(catalog) as reader:
        ds.ShardLoader(plan_for(catalog), reader, decode, rank=0, size=1).close()
    assert loader_threads() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefetch": 0}, "prefetch is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"start_step": -1}, "Position"),
        ({"start_step": 9}, "Position"),
        ({"size": 9}, "--global-batch-size to 9"),
        ({"rank": 1}, "Rank 1 of size 1"),
    ],
)
def test_impossible_arguments_are_refused(catalog: ds.Catalog, change: dict[str, int], message: str) -> None:
    arguments = {"rank": 0, "size": 1, **change}
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.PlanError, match=message):
        ds.ShardLoader(plan_for(catalog), reader, decode, **arguments)  # type: ignore[arg-type]


def test_a_plan_for_other_data_is_refused(catalog: ds.Catalog) -> None:
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.PlanError, match="other data"):
        ds.ShardLoader(ds.ShardPlan(57, 8, 0, 0), reader, decode, rank=0, size=1)


def test_decoded_rows_must_be_the_records(catalog: ds.Catalog) -> None:
    with (
        ds.RecordReader(catalog) as reader,
        pytest.raises(ds.PlanError, match=r"shape \(7,\) for 'x' from 8 records"),
        ds.ShardLoader(
            plan_for(catalog), reader, lambda payloads: {"x": np.zeros(len(payloads) - 1)}, rank=0, size=1
        ) as loader,
    ):
        next(loader)


def test_tensors_become_arrays(catalog: ds.Catalog) -> None:
    torch = pytest.importorskip("torch")

    def to_tensors(payloads: Sequence[bytes]) -> dict[str, Any]:
        lengths = torch.tensor([len(payload) for payload in payloads])
        return {"length": lengths, "half": lengths.bfloat16(), "gradient": lengths.float().requires_grad_()}

    plan = plan_for(catalog)
    with ds.RecordReader(catalog) as reader, ds.ShardLoader(plan, reader, to_tensors, rank=0, size=1) as loader:
        batch = next(iter(loader))
    assert {name: array.dtype.name for name, array in batch.features.items()} == {
        "length": "int64",
        "half": "float32",
        "gradient": "float32",
    }
    assert batch.features["gradient"].tolist() == batch.features["length"].tolist()


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (lambda payloads: list(payloads), "a list"),
        (lambda payloads: np.zeros(len(payloads)), "a ndarray"),
        (lambda payloads: None if payloads else {}, "a NoneType"),
        (lambda payloads: {"x": [0] * len(payloads)}, "a list for 'x'"),
        (lambda payloads: {"x": memoryview(bytes(len(payloads)))}, "a memoryview for 'x'"),
        (lambda payloads: {1: np.zeros(len(payloads))}, "a name of type int"),
    ],
)
def test_what_is_decoded_must_be_arrays_by_name(
    catalog: ds.Catalog, returned: Callable[[Sequence[bytes]], Any], what: str
) -> None:
    class Task:
        def decode(self, payloads: Sequence[bytes]) -> Any:
            return returned(payloads)

    with (
        ds.RecordReader(catalog) as reader,
        pytest.raises(ds.PlanError, match=rf"Task\.decode returned {what}.*mapping of names to numpy arrays.*8 rows"),
        ds.ShardLoader(plan_for(catalog), reader, Task().decode, rank=0, size=1) as loader,
    ):
        next(loader)
