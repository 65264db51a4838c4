"""Ranks with unequal streams make equally many steps, and each record counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.pipe.pipe_loader import BatchShape, PipeLoader, PipeSteps, slots
from data_sharding.pipe.pipe_reader import PipeReader
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator
from data_sharding.pipe.uneven_loader import UnevenPipeLoader, UnevenStream

TIMEOUT_S = 30.0


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 40))
def test_laws_of_steps(records: list[int], batch: int) -> None:
    assume(batch >= len(records))
    steps = PipeSteps(tuple(records), batch)
    assert sum(steps.slots(rank) for rank in range(len(records))) == batch
    for rank, count in enumerate(records):
        parts = [steps.count(rank, step) for step in range(steps.steps)]
        assert sum(parts) == count
        assert all(0 <= part <= steps.slots(rank) for part in parts)
        assert parts == sorted(parts, reverse=True)
    weights = [steps.global_weight(step) for step in range(steps.steps)]
    assert sum(weights) == steps.num_records == sum(records)
    assert min(weights) >= 1
    assert [steps.first_id(rank) for rank in range(len(records))] == [
        sum(records[:rank]) for rank in range(len(records))
    ]


def test_steps_that_cannot_be() -> None:
    with pytest.raises(ds.PlanError, match="Rank 1 has no record"):
        PipeSteps((3, 0), 4)
    with pytest.raises(ds.PlanError, match="smaller than the 3 ranks"):
        PipeSteps((3, 1, 1), 2)
    with pytest.raises(ds.PlanError, match="Step 2 was asked for"):
        PipeSteps((3, 1), 4).count(0, 2)


def numbers(records: ds.RecordBatch) -> dict[str, np.ndarray]:
    draws = records.random.uniform("u") if records.random is not None else np.zeros(len(records))
    return {"number": np.array([int(record) for record in records]), "draw": draws}


@contextmanager
def feeding(folder: Path, counts: Sequence[int], epochs: int) -> Iterator[list[list[int]]]:
    """FIFOs r-0, r-1, … with so many records; gives the numbers that each holds."""
    own, first = [], 0
    feeds = {}
    for rank, count in enumerate(counts):
        own.append(list(range(first, first + count)))
        first += count
        file = folder / f"{rank}.tfrecord"
        with ds.TFRecordWriter(file) as writer:
            for number in own[-1]:
                writer.write(str(number).encode())
        feeds[f"r-{rank}"] = ChannelFeed((str(file),))
    with PipeSimulator(folder, feeds, epochs):
        yield own


def epoch_of(
    reader: PipeReader, steps: PipeSteps, rank: int, start: int = 0, seed: int | None = None
) -> list[ds.LoadedBatch]:
    with PipeLoader(
        reader.open(steps.records[rank]), steps, numbers, rank=rank, start_step=start, timeout_s=TIMEOUT_S, seed=seed
    ) as loader:
        batches = list(loader)
        with pytest.raises(ds.PlanError, match="has been read to its end"):
            iter(loader)
        return batches


@given(st.lists(st.integers(1, 13), min_size=1, max_size=4), st.integers(1, 12))
@settings(max_examples=20)
def test_every_record_once_at_weight_1(tmp_path_factory: pytest.TempPathFactory, counts: list[int], batch: int) -> None:
    assume(batch >= len(counts))
    folder = tmp_path_factory.mktemp("pipes")
    steps = PipeSteps(tuple(counts), batch)
    audit = ds.CoverageAudit(sum(counts))
    total = np.zeros(steps.steps)
    with feeding(folder, counts, 1) as own:
        for rank in range(len(counts)):
            with PipeReader(folder, f"r-{rank}", timeout_s=TIMEOUT_S) as reader:
                batches = epoch_of(reader, steps, rank)
            assert [batch.step for batch in batches] == list(range(steps.steps))
            for one in batches:
                assert one.weights.shape == one.ids.shape == one.features["number"].shape == (steps.slots(rank),)
                assert one.global_weight == steps.global_weight(one.step)
                np.testing.assert_array_equal(one.features["number"], one.ids)
                total[one.step] += one.weights.sum()
                audit.add(one.ids, one.weights)
            real = np.concatenate([one.features["number"][one.weights > 0] for one in batches])
            assert real.tolist() == own[rank]
    assert audit.complete
    assert total.tolist() == [steps.global_weight(step) for step in range(steps.steps)]


@pytest.mark.parametrize("rank", [0, 1])
def test_beginning_at_any_step(tmp_path: Path, rank: int) -> None:
    """Read again and discarded up to there: what follows is what followed before. Rank 1 runs out early."""
    counts = (11, 3)
    steps = PipeSteps(counts, 4)
    with feeding(tmp_path, counts, steps.steps + 1), PipeReader(tmp_path, f"r-{rank}", timeout_s=TIMEOUT_S) as reader:
        whole = epoch_of(reader, steps, rank)
        for start in range(steps.steps):
            rest = epoch_of(reader, steps, rank, start)
            assert [one.step for one in rest] == list(range(start, steps.steps))
            for one, other in zip(whole[start:], rest, strict=True):
                for left, right in zip(one[1:3], other[1:3], strict=True):
                    np.testing.assert_array_equal(left, right)
                np.testing.assert_array_equal(one.features["number"], other.features["number"])


def test_draws_belong_to_epoch_and_record(tmp_path: Path) -> None:
    steps = PipeSteps((6,), 4)
    with feeding(tmp_path, [6], 2), PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader:
        draws = [np.concatenate([one.features["draw"] for one in epoch_of(reader, steps, 0, seed=5)]) for _ in range(2)]
    assert not np.array_equal(*draws)
    expected = ds.SampleRandom(5, 1, np.array([0, 1, 2, 3, 4, 5, 5, 5])).uniform("u")
    np.testing.assert_array_equal(draws[1], expected)


@pytest.mark.parametrize(
    ("planned", "start", "words"),
    [
        (4, 0, "delivered 5 records"),
        (4, 1, "delivered 5 records"),
        (6, 0, "delivered 5 records where 6"),
        (8, 3, "delivered 5 records where 8"),
    ],
)
def test_another_count_than_planned(tmp_path: Path, planned: int, start: int, words: str) -> None:
    with (
        feeding(tmp_path, [5], 1),
        PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader,
        pytest.raises(ds.ChangedDataError, match=words) as caught,
    ):
        epoch_of(reader, PipeSteps((planned,), 2), 0, start)
    assert any("while loading step" in note for note in caught.value.__notes__)


def test_decode_must_give_one_row_a_record(tmp_path: Path) -> None:
    steps = PipeSteps((5,), 2)
    with feeding(tmp_path, [5], 1), PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader:
        loader = PipeLoader(reader.open(), steps, lambda records: {"x": np.zeros(len(records) + 1)}, rank=0)
        with loader, pytest.raises(ds.PlanError, match="returned shape"):
            next(loader)


def test_a_pass_that_was_opened_for_another_count(tmp_path: Path) -> None:
    with (
        feeding(tmp_path, [5], 1),
        PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader,
        pytest.raises(ds.PlanError, match="opened for 4 records"),
    ):
        PipeLoader(reader.open(expected_records=4), PipeSteps((5,), 2), numbers, rank=0)


def test_stop_iteration_in_decode_is_no_end(tmp_path: Path) -> None:
    def decode(records: ds.RecordBatch) -> dict[str, np.ndarray]:
        raise StopIteration(len(records))

    with feeding(tmp_path, [5], 1), PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader:
        loader = PipeLoader(reader.open(), PipeSteps((5,), 2), decode, rank=0)
        with loader, pytest.raises(RuntimeError, match="raised StopIteration"):
            next(loader)


class Ranks:
    """An allgather among threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._values = [0] * size
        self.rounds = 0

    def agree(self, rank: int) -> Callable[[int], Sequence[int]]:
        def gather(own: int) -> Sequence[int]:
            self._values[rank] = own
            self._barrier.wait(TIMEOUT_S)
            everyone = list(self._values)
            self.rounds += rank == 0
            self._barrier.wait(TIMEOUT_S)
            return everyone

        return gather


@contextmanager
def streams(folder: Path, size: int, batch: int) -> Iterator[list[UnevenStream]]:
    ranks = Ranks(size)
    with ExitStack() as stack:
        made = []
        for rank in range(size):
            reader = stack.enter_context(PipeReader(folder, f"r-{rank}", rank=rank, timeout_s=TIMEOUT_S))
            shape = BatchShape(numbers, slots(rank, size, batch), None, rank << 40)
            made.append(UnevenStream(reader.open, ranks.agree(rank), shape, timeout_s=TIMEOUT_S))
        yield made
        for each in made:
            each.close()


def on_all(made: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(work, made, timeout=2 * TIMEOUT_S))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(3, 8), st.integers(1, 12))
@settings(max_examples=15)
def test_agreed_streams(tmp_path_factory: pytest.TempPathFactory, counts: list[int], batch: int, steps: int) -> None:
    """Nobody is told the counts. Whatever they are, all ranks make the same steps and drop nothing."""
    folder = tmp_path_factory.mktemp("agreed")
    known = PipeSteps(tuple(counts), batch)
    passes = -(-3 * steps // known.steps)
    with feeding(folder, counts, passes + 1) as own, streams(folder, len(counts), batch) as made:

        def three_epochs(stream: UnevenStream) -> list[ds.LoadedBatch]:
            return [one for epoch in range(3) for one in UnevenPipeLoader(stream, steps, epoch)]

        everyone = on_all(made, three_epochs)
    for rank, batches in enumerate(everyone):
        assert [one.step for one in batches] == list(range(steps)) * 3
        assert [one.global_weight for one in batches] == [
            known.global_weight(n % known.steps) for n in range(3 * steps)
        ]
        real = [number for one in batches for number in one.features["number"][one.weights > 0].tolist()]
        assert real == (own[rank] * (passes + 1))[: len(real)]
        assert len(real) == sum(known.count(rank, n % known.steps) for n in range(3 * steps))


def test_agreed_streams_take_up_in_the_middle(tmp_path: Path) -> None:
    with feeding(tmp_path, [5, 9], 4), streams(tmp_path, 2, 4) as made:
        loaders = on_all(made, lambda stream: UnevenPipeLoader(stream, 4, 1, 2))
        on_all(loaders, list)
        for loader in loaders:
            with pytest.raises(ds.PlanError, match="has been read to its end"):
                iter(loader)
        assert [stream.steps_taken for stream in made] == [8, 8]
        with pytest.raises(ds.PlanError, match="A pipe cannot be read again"):
            UnevenPipeLoader(made[0], 4, 1, 3)


def test_agreed_streams_without_a_record(tmp_path: Path) -> None:
    """There is nothing to fill its slots with."""
    (tmp_path / "empty").touch()
    with feeding(tmp_path, [5, 2], 1):
        feeds = {f"r-{rank}": ChannelFeed((str(tmp_path / f"{rank}.tfrecord"),)) for rank in range(2)}
    empty = ChannelFeed((str(tmp_path / "empty"),))
    with PipeSimulator(tmp_path, {"r-0": feeds["r-0"], "r-1": empty}, 1), streams(tmp_path, 2, 4) as made:
        with pytest.raises(ds.MissingDataError, match="delivered no record"):
            made[1]._next_of_rank()
        made[1].close()
        made[0].close()
    with PipeSimulator(tmp_path, {"r-0": empty}, 2), PipeReader(tmp_path, "r-0", timeout_s=TIMEOUT_S) as reader:
        shape = BatchShape(numbers, 4)
        stream = UnevenStream(reader.open, lambda count: [count], shape, timeout_s=TIMEOUT_S)
        with pytest.raises(ds.MissingDataError):
            stream.next()
        stream.close()
