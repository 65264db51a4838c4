"""What differs between runs is found whatever they lack, and what is equal is not told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.run_folders import FakeRun, logged

from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.engine import events
from hvdtrain.errors import UsageError
from hvdtrain.history.comparison import MISSING, Difference, as_json, compare, differences
from hvdtrain.history.weight_hashes import SameBits, compare_bits

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.floats(allow_infinity=False) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(MAPPINGS)
def test_equal_mappings_do_not_differ(one: dict[str, Any]) -> None:
    assert differences([one, json.loads(json.dumps(one)), one]) == []


@given(MAPPINGS, MAPPINGS)
def test_a_difference_is_one_from_both_sides(one: dict[str, Any], other: dict[str, Any]) -> None:
    there, back = differences([one, other]), differences([other, one])
    assert {row.key for row in there} == {row.key for row in back}
    values = {row.key: row.values for row in back}
    assert all(repr(values[row.key]) == repr(row.values[::-1]) for row in there)


def test_keys_of_inner_mappings_lists_and_what_is_missing() -> None:
    one = {"lr": 0.1, "data": {"dir": "a", "threads": 1}, "milestones": [1, 2], "own": {}, "flag": True}
    other = {"lr": 0.1, "data": {"dir": "b", "threads": 1}, "milestones": [1, 3], "new": None, "flag": 1}
    assert differences([one, other], ignored=["own"]) == [
        Difference("data.dir", ("a", "b")),
        Difference("milestones", ([1, 2], [1, 3])),
        Difference("flag", (True, 1)),
        Difference("new", (MISSING, None)),
    ]
    assert differences([one, other], ignored=["data", "own", "new", "flag", "milestones"]) == []


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    one = FakeRun.begun(tmp_path / "one", TrainConfig(lr=0.1, global_batch_size=32, output_dir="one")).audit("f1")
    one.ended(accuracy=0.9, samples_per_second=100.0)
    config = TrainConfig(lr=0.2, global_batch_size=32, output_dir="two", data=DataConfig(threads=4))
    two = FakeRun.begun(tmp_path / "two", config, ranks=3).audit("f1")
    two.ended(accuracy=0.8, weights="cd" * 32, samples_per_second=250.0)
    found = compare([one.folder, two.folder])
    assert found.config == [Difference("data.threads", (1, 4)), Difference("lr", (0.1, 0.2))]
    assert found.environment == [Difference("topology.size", (2, 3))]
    outcomes = {row.name: row for row in found.outcomes}
    assert outcomes["validation accuracy"].values == (0.9, 0.8)
    assert outcomes["validation accuracy"].changes() == [pytest.approx(-0.1)]
    assert outcomes["samples/s"].changes() == [2.5]
    assert outcomes["best loss"].values == (0.25, 0.25)
    assert (found.same_weights, found.same_data, found.same_batches) == (False, True, True)
    assert json.loads(json.dumps(as_json(found)))["config"]["lr"] == [0.1, 0.2]


@pytest.mark.parametrize("changed", [{"seed": 1}, {"global_batch_size": 64}, {"data": DataConfig(shuffle="block")}])
def test_what_changes_the_batches(changed: dict[str, Any], tmp_path: Path) -> None:
    for name, config in (("one", {}), ("two", changed)):
        FakeRun.begun(tmp_path / name, TrainConfig(**{"global_batch_size": 32, **config})).audit("f1").ended()
    found = compare([tmp_path / "one", tmp_path / "two"])
    assert (found.same_weights, found.same_data, found.same_batches) == (True, True, False)


def test_what_is_unknown_is_not_said_to_be_equal(tmp_path: Path) -> None:
    FakeRun.begun(tmp_path / "one").audit("f1").ended()
    FakeRun.begun(tmp_path / "two").events(logged(7))
    (tmp_path / "two" / "config.yaml").write_text("lr: [")
    found = compare([tmp_path / "one", tmp_path / "two"])
    assert (found.same_weights, found.same_data, found.same_batches) == (None, None, None)
    outcomes = {row.name: row.values for row in found.outcomes}
    assert (outcomes["steps"], outcomes["best loss"]) == ((100, 7), (0.25, None))
    # The first one has validated, the other one has only trained so far.
    assert (outcomes["validation accuracy"], outcomes["training accuracy"]) == ((0.9, None), (None, 0.75))
    assert (found.config, as_json(found)["config"]) == (None, None)
    assert found.runs[1].problems == ("config.yaml is damaged or half written.",)


def hashes(folder: Path, *lines: str) -> Path:
    """A file with checksums of two weights, of which the last line may be cut off."""
    folder.mkdir()
    (folder / "hashes.jsonl").write_text('{"names": ["a", "b"]}\n' + "\n".join(lines))
    return folder


def of_step(step: int, a: int, b: int, gradients: tuple[int, ...] = ()) -> str:
    of_workers = "".join(f"{value:08x}" for value in gradients)
    return json.dumps({"step": step, "checksums": f"{a:08x}{b:08x}", "gradients": of_workers})


def test_bits_are_the_same_until_a_weight_differs(tmp_path: Path) -> None:
    one = hashes(tmp_path / "one", of_step(5, 1, 2), of_step(10, 9, 9), of_step(10, 3, 4), of_step(15, 5, 6))
    other = hashes(tmp_path / "other", of_step(5, 1, 2), of_step(10, 3, 4), of_step(15, 5, 7), '{"step": 20, "check')
    assert compare_bits([one, other]) == SameBits(10, 15, ("b",), 2), "the last line of a step counts"
    assert compare_bits([one, one]) == SameBits(15, None, (), 2)
    three = hashes(tmp_path / "three", of_step(15, 5, 6, (1, 2, 3)))
    assert compare_bits([three, hashes(tmp_path / "unlike", of_step(15, 5, 7, (1, 9, 3)))]) == SameBits(
        None, 15, ("b",), 2, (1,)
    )
    two = hashes(tmp_path / "two", of_step(15, 5, 7, (1, 2)))
    assert compare_bits([three, two]) == SameBits(None, 15, ("b",), 2, (), False), "other virtual workers"
    assert compare_bits([one, hashes(tmp_path / "virtual", of_step(5, 1, 2, (7,)))]) == SameBits(
        5, None, (), 2, (), False
    )
    assert compare_bits([hashes(tmp_path / "later", of_step(20, 1, 2)), one]) is None
    (tmp_path / "none").mkdir()
    assert compare_bits([one, tmp_path / "none"]) is None


def test_fewer_than_two_runs_are_refused(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "one").folder
    for folders in ([], [run], [run, run / ".." / "one"]):
        with pytest.raises(UsageError, match="Two runs or more"):
            compare(folders)
    with pytest.raises(UsageError, match="There is no folder"):
        compare([run, tmp_path / "none"])


def test_checksums_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        FakeRun.begun(tmp_path / name).audit("f1").ended()
    os.mkfifo(tmp_path / "two" / "hashes.jsonl")
    assert [run.problems for run in compare([tmp_path / "one", tmp_path / "two"]).runs] == [
        (),
        ("hashes.jsonl is not a regular file.",),
    ]


def test_a_result_of_an_earlier_part_says_nothing_of_a_run_that_was_continued(tmp_path: Path) -> None:
    """Its weights are others, although the hash of the earlier ones is equal."""
    first = FakeRun.begun(tmp_path / "first").ended()
    other = FakeRun.begun(tmp_path / "other").ended()
    assert compare([first.folder, other.folder]).same_weights is True
    other.events(events.RunStarted(100, 200, 50, 2), logged(150))
    found = compare([first.folder, other.folder])
    assert (found.same_weights, found.weights[1]) == (None, "")
    assert found.outcomes[0].values == (100, 150)
