"""Which runs may be tuned, and what the cache of choices does with files that it cannot use."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.config_samples import parse
from support.ranks import ThreadCommunicator, World, all_well, run_on_ranks

from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.sync_state import in_buckets
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.prepare import prepare
from hvdtrain.run.tuning.choice import distinct, may_be_tuned, within
from hvdtrain.run.tuning.tuning_cache import MIB, Tuned, TuningCache, open_cache
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology

USUAL = Tuned(BUCKET_BYTES, None, "measurement")


def choice(cap: str, threads: str) -> str:
    return f'{{"tuned": {{"bucket_cap_mb": {cap}, "threads": {threads}}}}}'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


NOT_TUNED: list[list[str]] = [
    ["--tune", "never"],
    ["--bucket-cap-mb", "25"],
    ["--deterministic", "True"],
    ["--compression", "powersgd"],
    ["--reduce-op", "adasum"],
    ["--data.mode", "pipe"],
]


def test_only_several_workers_are_tuned_and_only_where_nothing_is_chosen() -> None:
    two = ThreadCommunicator(World(2), 0)
    assert may_be_tuned(TrainConfig(), two)
    assert not may_be_tuned(TrainConfig(), SerialCommunicator(Topology.single()))
    for flags in NOT_TUNED:
        assert not may_be_tuned(parse(*flags), two), flags


def test_a_run_that_ends_by_time_is_measured_less() -> None:
    assert within(TrainConfig(), 5.0) == 5.0
    assert within(TrainConfig(max_time="100"), 5.0) == pytest.approx(2.0)
    assert within(TrainConfig(max_time="10:00:00"), 5.0) == 5.0


class Sized:
    """Gradients of some sizes, of which as many are in a bucket as fit; all that `distinct` asks an adapter."""

    compiles_buckets = False

    def __init__(self, *mib: float) -> None:
        self._sizes = [int(size * MIB) for size in mib]

    def buckets(self, cap: int) -> tuple[int, ...]:
        return tuple(len(bucket) for bucket in in_buckets(self._sizes, lambda _: 0, lambda size: size, cap))


@pytest.mark.parametrize(
    ("sizes", "caps"),
    [
        ((), []),  # nothing is summed in buckets
        ((0.5, 0.5), [25]),  # one bucket in any case
        ((0.5, 0.6), [25, 1]),
        ((5.0, 6.0), [25, 1]),  # 4 MiB cuts as 1 does
        ((3.0,) * 7 + (0.5, 0.5, 0.5), [25, 1, 4]),
        ((3.0,) * 40 + (0.5,) * 4, [25, 1, 4, 100]),
    ],
)
def test_only_sizes_that_make_a_difference_are_tried(sizes: tuple[float, ...], caps: list[int]) -> None:
    adapter: Any = Sized(*sizes)
    assert [cap // MIB for cap in distinct(adapter)] == caps


def test_what_is_remembered_is_read_again() -> None:
    cache = TuningCache({"a": 1})
    assert cache.read() is None
    for threads in (None, 3):
        cache.write(Tuned(MIB, threads, "measurement"), "1 MiB 3 and 4 ms")
        assert TuningCache({"a": 1}).read() == Tuned(MIB, threads, "cache")
    assert TuningCache({"a": 2}).read() is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"tuned": 1}', choice('"x"', "null"), choice("0", "null"), choice("1", "0"), "\0\xff"],
)
def test_a_torn_file_is_a_warning(content: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = TuningCache({})
    cache.path.parent.mkdir(parents=True)
    cache.path.write_text(content)
    assert cache.read() is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    cache.write(USUAL, "")
    assert cache.read() == replace(USUAL, source="cache")


def test_a_folder_that_cannot_be_written_is_a_warning(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    own_cache.write_text("a file, where a folder should be")
    TuningCache({}).write(USUAL, "")
    assert TuningCache({}).read() is None
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_the_file_is_that_of_the_job() -> None:
    """The same for the same job on all ranks; another one for what changes a step."""
    setup = prepare(TrainConfig(), TorchDigits, SerialCommunicator(Topology.single()))
    state = {"model/w": np.zeros((3, 4), np.float32), "optimizer/w/step": np.zeros(1)}  # a new run has no slots yet

    def file_of(one: Any, arrays: dict[str, Any]) -> str:
        return str(open_cache(one, arrays, 1, SerialCommunicator(Topology.single())).path)

    own = file_of(setup, state)
    assert file_of(setup, {"model/w": np.ones((3, 4), np.float32)}) == own
    assert file_of(replace(setup, config=replace(setup.config, seed=3)), state) == own
    others = [
        file_of(setup, {"model/w": np.zeros((4, 3), np.float32)}),
        file_of(setup, {"model/w": np.zeros((3, 4), np.float64)}),
        file_of(replace(setup, config=replace(setup.config, compression="fp16")), state),
        file_of(replace(setup, about={**setup.about, "global_batch_size": 7}), state),
    ]
    assert len({own, *others}) == 5
    assert len(set(all_well(run_on_ranks(2, lambda comm: str(open_cache(setup, state, 1, comm).path))))) == 1
