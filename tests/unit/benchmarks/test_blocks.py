"""Blocks of ABBA: which arm runs when, and what a block's figures are."""

from __future__ import annotations

import pytest

from benchmarks.blocks import measured, palindrome


def test_order_of_arms_cancels_a_linear_drift() -> None:
    arms = [f"arm{number}" for number in range(5)]
    for turn in range(7):
        order = palindrome(arms, turn)
        times = {arm: [place for place, other in enumerate(order) if other == arm] for arm in arms}
        assert {sum(places) for places in times.values()} == {len(order) - 1}
        assert order[0] == arms[turn % 5]


def test_a_machine_that_slows_down_evenly_shows_all_arms_alike(capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[str] = []

    def run(arm: str) -> float:
        runs.append(arm)
        return float(len(runs))

    blocks = measured(["ours", "other"], ("ours", "again"), 3, run, "{:.0f} s".format)
    assert blocks == [dict.fromkeys(("ours", "other", "again"), mean) for mean in (3.5, 9.5, 15.5)]
    first, second = runs[:6], runs[6:12]
    assert (first, second) == (["ours", "other", "ours"] * 2, ["other", "ours", "ours", "ours", "ours", "other"])
    assert capsys.readouterr().out.splitlines()[0] == str(
        {"ours": ["1 s", "6 s"], "other": ["2 s", "5 s"], "again": ["3 s", "4 s"]}
    )


def test_a_run_may_have_several_figures() -> None:
    def mean(runs: list[dict[int, float]]) -> dict[int, float]:
        return {size: sum(run[size] for run in runs) / 2 for size in runs[0]}

    figures = iter(range(100))
    blocks = measured(
        ["ours"], ("ours", "again"), 1, lambda _: {4: float(next(figures)), 16: 1.0}, lambda run: f"{run[4]}", mean
    )
    assert blocks == [{"ours": {4: 1.5, 16: 1.0}, "again": {4: 1.5, 16: 1.0}}]
