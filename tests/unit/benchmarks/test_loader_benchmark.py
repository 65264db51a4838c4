"""The loader benchmark's own arithmetic, and its data_sharding arms end to end on little data."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from benchmarks.compact_json import compact_json
from benchmarks.loader import measure
from benchmarks.loader.datasets import Content, DataSet
from benchmarks.loader.driver import ArmError, ArmProcess
from benchmarks.statistics import Ratio, ratio_of

_DATA = DataSet("tiny", 1000, 64, 100, "skewed", 300)


def _arm(tmp_path: Path, name: str = "data_sharding") -> ArmProcess:
    return ArmProcess(name, sys.executable, 0, tmp_path, tmp_path / "log", deadline_s=60)


def test_ratio_is_the_median_and_its_interval_holds_it() -> None:
    ratio = ratio_of([2, 4, 6, 8, 30], [1, 2, 2, 4, 10])
    assert ratio.median == 2
    assert ratio.low == 2
    assert ratio.high == 3


@pytest.mark.parametrize(
    ("ratio", "noise", "claimed"),
    [
        (Ratio(1.5, 1.4, 1.6), Ratio(1.0, 0.95, 1.05), True),
        (Ratio(0.5, 0.4, 0.6), Ratio(1.0, 0.95, 1.05), True),
        (Ratio(1.04, 1.03, 1.05), Ratio(1.0, 0.95, 1.05), False),  # within A against A
        (Ratio(1.5, 0.9, 2.0), Ratio(1.0, 0.95, 1.05), False),  # may be chance
        (Ratio(1.5, 1.4, 1.6), Ratio(1.0, 0.4, 1.2), False),  # A against A is worse than it
        (Ratio(0.6, 0.55, 0.65), Ratio(1.0, 0.9, 1.8), False),  # and so it is seen from the other side
    ],
)
def test_claim_must_beat_both_noise_and_chance(ratio: Ratio, noise: Ratio, claimed: bool) -> None:
    assert ratio.beyond(noise) is claimed


def test_payloads_are_the_same_each_time_and_content_sees_a_swap() -> None:
    payloads = list(_DATA.payloads())
    assert payloads == list(_DATA.payloads())
    here, there = Content.of(payloads), Content.of([payloads[1], payloads[0], *payloads[2:]])
    assert here.records == 1000
    assert here == dataclasses.replace(there, crc_chain=here.crc_chain)
    assert here.crc_chain != there.crc_chain


def test_loader_arm_delivers_everything_resumes_exactly_and_refuses_damage(tmp_path: Path) -> None:
    with _arm(tmp_path) as arm:
        measure.prepare(arm, _DATA, print)
        measure.verify(arm, _DATA)
        block = measure.speed([arm], _DATA, "shuffled", 1)[0]["data_sharding"]
        assert [part["records"] for part in block] == [1000, 1000]
        for at in (measure.resume(arm, _DATA, 2), measure.resume_elsewhere(arm, _DATA, 3, 2)):
            assert [at[part]["exact"] for part in ("0.01", "0.5", "0.99")] == [True] * 3
        assert "damaged" in measure.notices_damage(arm, _DATA)["how"]
        measure.verify(arm, _DATA)  # the flipped bit was flipped back
        assert measure.memory(arm, _DATA)["records"] == 1000


def test_arm_that_does_not_check_is_seen_handing_on_damage(tmp_path: Path) -> None:
    with _arm(tmp_path, "data_sharding_no_crc") as arm:
        measure.prepare(arm, _DATA, print)
        assert measure.notices_damage(arm, _DATA) == {"noticed": False, "how": "handed on the damaged payload"}


def test_lost_record_is_an_error(tmp_path: Path) -> None:
    with _arm(tmp_path) as arm:
        measure.prepare(arm, _DATA, print)
        Content.of(list(_DATA.payloads())[1:]).save(arm.folder(_DATA).parent / "content.json")
        with pytest.raises(ArmError, match="read Content"):
            measure.verify(arm, _DATA)


def test_unknown_arm_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="no_such_arm ended"):
        _arm(tmp_path, "no_such_arm")
    assert "KeyError" in (tmp_path / "log").read_text()


def test_json_is_compact_and_keeps_its_values() -> None:
    value = {"a": [1.23456789, {"b": "x" * 200}], "c": list(range(100))}
    text = compact_json(value)
    assert json.loads(text) == {**value, "a": [1.23457, {"b": "x" * 200}]}
    assert max(map(len, text.splitlines())) < 250
