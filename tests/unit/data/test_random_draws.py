"""A decode function that draws random numbers which no seed of ours reaches is noticed, and its generator named."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from data_sharding import LoadedBatch, RecordBatch, SampleRandom
from hvdtrain.data.first_batch import WatchedLoader
from hvdtrain.data.random_draws import DrawWatch, ReportingDecode
from hvdtrain.errors import UsageError

ROWS = np.zeros((2, 3), np.float32)
OWN = np.random.default_rng(7)
IDS = np.array([4, 9])
BATCH = RecordBatch([b"a", b"b"], IDS, None, np.ones(2, np.bool_), SampleRandom(1, 0, IDS))


def seeded(records: RecordBatch) -> Any:
    assert records.random is not None
    rows = []
    for seed in records.random.integers("seed", 0, 2**31).tolist():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        rows.append(torch.rand(1).numpy() + np.random.rand(1) + random.random())
    return {"x": np.stack(rows)}


DRAWS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "nothing": (lambda: ROWS, []),
    "python": (lambda: ROWS + random.random(), [0]),
    "numpy": (lambda: ROWS + np.random.rand(2, 1), [1]),
    "numpy, as often as its state is long": (lambda: ROWS + np.random.bytes(4 * 624)[0], [1]),
    "numpy, the second half of a pair": (lambda: ROWS + np.random.randn(1), [1]),
    "torch": (lambda: ROWS + torch.rand(2, 1).numpy(), [2]),
    "two": (lambda: ROWS + torch.rand(1).numpy() + random.gauss(0, 1), [0, 2]),
    "without an effect": (lambda: ROWS + 0 * np.random.rand(), [1]),
}
NAMES = ["Python's random", "numpy.random", "torch's generator"]


class Loader:
    """Decodes two batches when they are asked for."""

    def __init__(self, decode: Callable[[RecordBatch], Any]) -> None:
        self._decode = decode

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Any:
        for step in range(2):
            yield LoadedBatch(step, IDS, np.ones(2, np.float32), self._decode(BATCH), 2.0)

    def abandon(self) -> None:
        pass


def watched(decode: Callable[[RecordBatch], Any], refuses: bool = False, kind: str = "") -> list[LoadedBatch]:
    watch = DrawWatch(decode, refuses, decoded_again=lambda ids: decode(BATCH) if ids is IDS else {}, kind=kind)
    with WatchedLoader(Loader(decode), watch.look) as loader:
        return list(loader)


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_in_threads_are_said_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    draw, numbers = DRAWS[kind]
    assert len(watched(lambda _: {"x": draw()})) == 2
    named = " and ".join(NAMES[number] for number in numbers)
    assert [record.message for record in caplog.records if f"random numbers from {named}." in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == bool(numbers)
    if numbers:
        with pytest.raises(UsageError, match=f"from {named}.*--deterministic"):
            watched(lambda _: {"x": draw()}, refuses=True)
    else:
        watched(lambda _: {"x": draw()}, refuses=True)


def test_an_object_that_draws_is_named_with_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    watched(lambda _: {"x": ROWS + random.random()}, kind="Noisy")
    said = caplog.records[0].message
    assert said.startswith("The Noisy, or the decode function "), said
    assert "give data.dataset() draws=True" in said, said
    assert "In decode, draw from records.random" in said, said


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_in_processes_are_reported_once(kind: str) -> None:
    draw, numbers = DRAWS[kind]
    decode = ReportingDecode(lambda _: {"x": draw()})
    first, second = decode(BATCH), decode(BATCH)
    reports = [array for name, array in first.items() if name != "x"]
    assert [report.tolist() for report in reports] == [[numbers] * 2] * bool(numbers)
    assert list(second) == ["x"]
    assert pickle.loads(pickle.dumps(ReportingDecode(len))).__wrapped__ is len  # type: ignore[arg-type]


def test_seeding_each_record_is_right_in_processes_only(caplog: pytest.LogCaptureFixture) -> None:
    assert list(ReportingDecode(seeded)(BATCH)) == ["x"]
    np.random.seed(0)
    watched(seeded)
    assert len(caplog.records) == 1


def test_a_generator_of_its_own_is_found_where_no_run_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    memory = np.zeros((2, 2))

    def decode(_: RecordBatch) -> dict[str, Any]:
        memory[:] = OWN.random((2, 2))
        return {"x": memory.copy()}

    with pytest.raises(UsageError, match="a generator of its own"):
        watched(decode, refuses=True)
    watched(decode)
    assert not caplog.records


def test_decoding_again_leaves_generators_as_they_were() -> None:
    calls = iter(range(9))

    def decode(_: RecordBatch) -> dict[str, Any]:
        if next(calls) == 1:  # again
            for draw, _ in DRAWS.values():
                draw()
        return {"x": ROWS}

    states = random.getstate(), np.random.get_state()[2:], torch.get_rng_state().tolist()
    watched(decode, refuses=True)
    assert states == (random.getstate(), np.random.get_state()[2:], torch.get_rng_state().tolist())


def test_draws_of_the_record_are_none_of_these(caplog: pytest.LogCaptureFixture) -> None:
    def decode(records: RecordBatch) -> dict[str, Any]:
        assert records.random is not None
        return {"x": records.random.uniform("u", shape=(2,)), "nan": np.full(2, np.nan)}

    watched(decode, refuses=True)
    assert list(ReportingDecode(decode)(BATCH)) == ["x", "nan"]
    assert not caplog.records
