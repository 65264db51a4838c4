"""Saved results: their names, their pages and pictures, and the sentences that a page begins with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import claims, saved
from benchmarks.allreduce.report import ARMS as LIBRARIES
from benchmarks.allreduce.report import markdown as page_of_sums
from benchmarks.comparison import Comparison
from benchmarks.memory.arms import SUITES as MEMORY
from benchmarks.overhead.arms import ARMS as LOOPS
from benchmarks.overhead.where import PARTS as LOOP_PARTS
from benchmarks.pictures import dots
from benchmarks.profile.samples import PARTS
from benchmarks.render import render
from benchmarks.scaling.unconnected import ARMS
from benchmarks.statistics import Estimate
from benchmarks.step.arms import SUITES
from benchmarks.tuning.arms import ARMS as SETTINGS

TIMES = (1.0, 1.1, 0.9)


def _blocks(arms: list[str], again: str) -> list[dict[str, float]]:
    """Each arm takes longer than the one before it."""
    return [{**{arm: time * (1 + place) for place, arm in enumerate(arms)}, again: time} for time in TIMES]


def _head() -> dict[str, Any]:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "6", "python": "3", "commit": "x", "load": [0.0]}
    return {"date": "2026-01-01T00:00:00", "np": 2, "machine": machine, "versions": {"torch": "2"}}


def _sums() -> list[dict[str, dict[str, float]]]:
    blocks = _blocks([*LIBRARIES], "hvdtrain_again")
    return [{arm: {"4": time / 1e6, "1024": time / 1e5} for arm, time in block.items()} for block in blocks]


_VERIFIED = {"name": "ring", "predicted": 1.0, "measured": [0.9, 1.2], "median": 1.05, "error": -0.05}

MADE: dict[str, dict[str, Any]] = {
    "plan": {
        "seconds": 1.0,
        "models": {
            "resnet18": {"verified": [_VERIFIED], "ways": {"2": [{"name": "ring", "memory": 1e6}]}},
            "transformer": {"verified": [_VERIFIED], "ways": {"2": [{"name": "ring", "memory": 1e6}]}},
        },
    },
    "tuning": {
        "models": {
            "mlp": {
                "blocks": _blocks([*SETTINGS], "tuned_again"),
                "chosen": [None, {"bucket_cap_mb": 4.0, "threads": None, "from": "measurement"}],
            }
        }
    },
    "step-mlp": {"suites": {"mlp": {"blocks": _blocks([*SUITES["mlp"].arms], "hvdtrain_again"), "loss_difference": 0}}},
    "memory": {"suites": {"mlp": _blocks([*SUITES["mlp"].arms], "hvdtrain_again")}},
    "memory-shards": {"suites": {"linear20-adamw": _blocks([*MEMORY["linear20-adamw"].arms], "hvdtrain_again")}},
    "profile": {
        "suites": {
            "mlp": {
                "seconds": {"step": 0.001, "allreduce": 0.0004, "compute": 0.0006},
                "messages": {"allreduces": 1.0, "negotiating": 0.0001, "reducing": 0.0002, "copying": 0.0},
                "shares": {name: 1 / len(PARTS) for name, _, _ in PARTS},
            }
        }
    },
    "overhead": {
        "blocks": _blocks([*LOOPS], "hvdtrain_again"),
        "timing_alone": {"seconds_per_step": 3e-6, "share_of_looks": 2e-4},
        "where": {part: 1 / len(LOOP_PARTS) for part, _ in LOOP_PARTS},
    },
    "allreduce": {"blocks": _sums()},
    "scaling": {
        "steps": {"resnet18": _blocks([*ARMS], "again")},
        "links": {
            "50": [{"latency": 1e-4, "bandwidth": 6e6, "sizes": {"1048576": 0.18}, "rings": {"1048576": 0.17}}] * 3
        },
    },
}
"""Results of those benchmarks of which none is kept."""


def _texts(svg: Path) -> str:
    """What a reader can search for."""
    return "\n".join(node.text or "" for node in ElementTree.parse(svg).iter() if node.tag.endswith("}text"))


@pytest.mark.parametrize("kind", MADE)
def test_a_result_gets_a_page_and_a_picture_with_text(kind: str, tmp_path: Path) -> None:
    saved.save({**_head(), **MADE[kind]}, kind, tmp_path)
    page = (tmp_path / f"{kind}-2026-01-01.md").read_text()
    if kind not in ("profile", "plan", "memory-shards"):  # which compare nothing with others
        assert page.index("**Not a win**") < page.index("\n| ")
    svg = tmp_path / f"{kind}-2026-01-01.svg"
    assert "c, 2 cores, 2026-01-01" in _texts(svg)
    before = svg.read_bytes()
    assert b"dc:date" not in before
    render(svg.with_suffix(".json"))
    assert svg.read_bytes() == before


@pytest.mark.parametrize("path", sorted(saved.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_still_render_to_what_is_kept(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    render(copy)
    assert copy.with_suffix(".md").read_text() == path.with_suffix(".md").read_text()
    assert path.with_suffix(".svg").exists()


def test_a_later_result_of_a_day_leaves_the_earlier_ones(tmp_path: Path) -> None:
    for number in range(3):
        saved.save({**_head(), **MADE["overhead"], "number": number}, "overhead", tmp_path)
    names = [f"overhead-2026-01-01{end}" for end in ("", "-2", "-3")]
    assert [json.loads((tmp_path / f"{name}.json").read_text())["number"] for name in names] == [0, 1, 2]
    assert {path.stem for path in tmp_path.iterdir()} == set(names)
    assert len(list(tmp_path.iterdir())) == 9


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Estimate(0.7, 0.6, 0.8), "reached."),
        (Estimate(0.7, 0.6, 0.81), "not reached beyond chance (its median is)."),
        (Estimate(0.81, 0.6, 0.9), "not reached."),
    ],
)
def test_a_goal_is_reached_where_its_whole_interval_is(found: Estimate, verdict: str) -> None:
    assert claims.at_most(0.8, found, "of theirs").endswith(f"), {verdict}")
    mirrored = Estimate(2 - found.median, 2 - found.high, 2 - found.low)
    assert claims.at_least(1.2, mirrored, "of it").endswith(f"), {verdict}")


def test_what_is_faster_or_open_is_no_win() -> None:
    blocks = [{"ours": 1.0, "again": 1.01, "slow": 2.0, "same": 1.005, "fast": 0.5}] * 3
    labels = {"slow": "a slow one", "same": "one alike", "fast": "a fast one"}
    sentence = claims.not_a_win_among(Comparison(blocks, "ours", "again"), labels)
    assert sentence == "**Not a win** (ours / theirs): a fast one 2.00 (2.00–2.00); one alike 1.00 (1.00–1.00)."
    assert claims.not_a_win([]) == "**Not a win** (ours / theirs): none of these."


def test_neighbouring_sizes_are_said_as_a_range() -> None:
    arms = {name: {"4": 1.0, "16": 1.0, "64": 2.0, "256": 2.0} for name in (*LIBRARIES, "hvdtrain_again")}
    arms["mpi4py"] = {"4": 0.5, "16": 0.4, "64": 3.0, "256": 1.0}
    arms |= {name: {size: 9.0 for size in arms["mpi4py"]} for name in ("hvdtrain_gloo", "horovod", "torch_gloo")}
    head = _head()
    head["machine"]["load_at_end"] = [0.0]
    page = page_of_sums({**head, "blocks": [arms]})
    assert "ours / theirs): mpi4py, mpirun at 4 to 16 and 256 bytes, at worst 2.50 (2.50–2.50) at 16.\n" in page


def test_an_axis_is_logarithmic_where_ratios_exceed_three() -> None:
    for ratio, scale in ((0.5, "linear"), (2.0, "linear"), (0.3, "log"), (4.0, "log")):
        drawn = dots.figure("t", _head(), [dots.Panel("p", [dots.Row("r", [ratio] * 3)])])
        assert drawn.axes[0].get_xscale() == scale


def test_matplotlib_is_imported_to_draw_only() -> None:
    kinds = (
        "allreduce",
        "clients",
        "loader",
        "memory",
        "overhead",
        "parquet",
        "plan",
        "profile",
        "recovery",
        "remote",
        "scale",
        "scaling",
        "startup",
        "step",
        "versions",
        "virtual_workers",
    )
    imports = ", ".join(f"benchmarks.{kind}.__main__" for kind in kinds)
    code = f"import sys, {imports}; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "False\n"
