"""The short forms of all benchmarks, and the pages on two workers and on two checkouts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from benchmarks.__main__ import SHORT
from benchmarks.checkpoint.report import markdown as checkpoint_markdown
from benchmarks.checkpoint.worker import measure
from benchmarks.scaling import report
from benchmarks.scaling.over_links import ring_seconds
from benchmarks.versions.report import AGAIN, CASES, OTHER, OURS
from benchmarks.versions.report import markdown as versions_markdown

MACHINE = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "6", "python": "3", "commit": "x", "load": [0.0]}
HEAD = {"date": "2026-01-01T00:00:00", "machine": {**MACHINE, "load_at_end": [0.1]}, "versions": {"torch": "2"}}


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, runs in SHORT.items() for words in runs])
def test_short_forms_have_arguments_that_exist(
    name: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    options: Any = import_module(f"benchmarks.{name}.__main__")._parse()
    assert getattr(options, "blocks" if name != "plan" else "seconds") == 1


def test_two_ranks_send_a_half_twice() -> None:
    assert ring_seconds(1_000_000, {"latency": 0.001, "bandwidth": 1e6}) == pytest.approx(2 * (0.001 + 0.5))


def test_the_page_of_two_workers_has_efficiency_and_ring_model() -> None:
    block = {"alone": 0.1, "unconnected": 0.1, "exchanging": 0.12, "together": 0.125, "again": 0.125}
    link = {"latency": 0.0, "bandwidth": 1e6, "sizes": {"1000000": 1.1}, "again": {"1000000": 1.0}}
    page = report.markdown(json.loads(json.dumps({**HEAD, "steps": {"mlp": [block] * 3}, "links": {"8": [link] * 3}})))
    assert " | 3 | 100 | 100 | 120 | 125 | 0.80 (0.80–0.80) | 1.00 (1.00–1.00) | 1.04 (1.04–1.04) |\n" in page
    assert "| 8 Mbit/s, 1,000,000 bytes | 0 | 8.0 | 1100 | 1000 | 1.10 (1.10–1.10) | 1.10 (1.10–1.10) |" in page
    assert "**Not a win** (time / ring model): 8 Mbit/s, 1,000,000 bytes 1.10 (1.10–1.10).\n" in page


def test_the_page_of_checkpoints_has_the_best_of_the_others() -> None:
    times = {"hvdtrain_async": 0.01, "hvdtrain_async_again": 0.01, "hvdtrain_sync": 0.2, "torch_save": 0.1}
    runs = {name: [{"slower_seconds": 0.005, "durable_seconds": 0.3}] * 2 for name in times}
    page = checkpoint_markdown(
        {
            **HEAD,
            "sizes": {
                "100": {"blocks": [{**times, "dcp_async": 0.05}] * 2, "runs": {**runs, "dcp_async": runs["torch_save"]}}
            },
        }
    )
    assert "| torch.save | 100.0 | 5.0 | 300.0 | 0.1 (0.1–0.1) |" in page
    assert "of the best of the others, torch.distributed.checkpoint.async_save: 0.20 (0.20–0.20), reached." in page
    assert "**Not a win** (ours / theirs): none of these.\n" in page


def test_saves_are_counted_from_the_call_until_they_are_complete() -> None:
    calls = []

    def save(step: int) -> Callable[[], bool]:
        calls.append(step)
        looks = iter([False, False, True])
        return lambda: next(looks)

    found = measure(save)
    assert calls == [1, 2, 3, 4]
    assert found["durable_seconds"] > found["stall_seconds"] >= 0


def test_the_page_of_two_checkouts_brackets_what_chance_explains() -> None:
    arms = (OTHER, OURS, AGAIN)
    blocks = [dict(zip(arms, times, strict=True)) for times in ((2.0, 1.0, 1.01), (2.0, 1.0, 0.99))]
    same = [dict(zip(arms, times, strict=True)) for times in ((1.0, 1.01, 1.05), (1.0, 1.01, 0.95))]
    first, second = list(CASES)[:2]
    page = versions_markdown(
        {**HEAD, "commits": {"other": "aaa", "this": "bbb"}, "cases": {first: blocks, second: same}}
    )
    assert f"| {first} | 2 | 1 | 0.50 (0.50–0.50) |" in page
    assert f"| {second} | 1 | 1.01 | [1.01 (1.01–1.01)] |" in page
    assert f"**Not a win** (after / before): {second} 1.01 (1.01–1.01).\n" in page
