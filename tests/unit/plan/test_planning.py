"""Which ways to train there are, and which is recommended."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.cli.plan import parse, request_of
from hvdtrain.cli.plan.plan_text import print_plan
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.plan.candidates import COUNTS, candidates, recommended
from hvdtrain.plan.check_predictions import Verified, config_of, measured_best
from hvdtrain.plan.cluster_simulation import Disturbances
from hvdtrain.plan.cost_model import Cluster, Layers, LinkModel, Workload
from hvdtrain.plan.plan_files import require_folder, write_plan
from hvdtrain.plan.predicted_plan import Plan, predicted_plan
from hvdtrain.tasks.torch import TorchDigits

LAYERS = [Layers(1e-4, 2e-4, 4e6, 1e6, 1e5) for _ in range(8)]
WORK = Workload(LAYERS, batch=256, fixed=1e-3, update=1e-3, slots=2.0)
FAST, SLOW = LinkModel(1e-6, 1e11), LinkModel(1e-4, 1e8)


def plan_of(cluster: Cluster, counts: tuple[int, ...] = (1, 2, 16), work: Workload = WORK) -> Plan:
    return predicted_plan(work, cluster, counts, (8.0, 1.0), Disturbances(), grows=False)


def test_all_ways_of_sixteen_workers() -> None:
    names = [one.name for one in candidates(WORK, Cluster(SLOW, FAST, workers_per_host=4), 16, (8.0, 1.0))]
    rings = ["ring", "ZeRO-1", "ZeRO-2", "hierarchical ring", "parameter server, 16:2", "parameter server, 16:16"]
    pipelines = [f"{kind} {grid}" for grid in ("8 × 2", "4 × 4", "2 × 8") for kind in ("pipeline", "naive split")]
    assert names == [*rings, *pipelines]  # no 16 stages of 8 layers


def test_with_fast_links_the_ring_is_recommended() -> None:
    best = recommended(candidates(replace(WORK, update=0.0), Cluster(FAST, FAST), 16, ()))
    assert best is not None
    assert best.name == "ring"


@pytest.mark.parametrize(("update", "name"), [(1e-3, "ring"), (9e-3, "ring"), (0.1, "ZeRO-1")])
def test_shards_are_recommended_where_they_save_more_than_they_may_cost(update: float, name: str) -> None:
    best = recommended(candidates(replace(WORK, update=update), Cluster(FAST, FAST), 16, ()))
    assert best is not None
    assert best.name == name


def test_with_slow_links_stages_are_recommended() -> None:
    """They send activations of one layer instead of the gradients of all."""
    best = recommended(candidates(WORK, Cluster(SLOW, SLOW), 16, ()))
    assert best is not None
    assert best.name.startswith("pipeline")


def test_what_does_not_fit_is_not_recommended() -> None:
    """32 MB of weights: with Adam four times that, even with shards more than 40 MB, in four stages a quarter."""
    small = Cluster(FAST, FAST, memory=40e6)
    work = replace(WORK, batch=16)
    best = recommended(candidates(work, small, 16, ()))
    assert best is not None
    assert best.name.startswith("pipeline")
    assert recommended(candidates(work, replace(small, memory=1e3), 16, ())) is None


def test_stages_are_cut_so_that_each_fits() -> None:
    """Cut where times are equal, the first stage would have six of eight equal layers' weights."""
    work = replace(WORK, layers=[Layers(seconds, seconds, 4e6) for seconds in [1e-4] * 6 + [3e-4] * 2])
    roomy, narrow = (Cluster(FAST, FAST, workers_per_host=2, memory=memory) for memory in (1e9, 4 * 4 * 4e6 + 1))
    assert [candidates(work, cluster, 2, ())[-1].layout.cuts for cluster in (roomy, narrow)] == [(6,), (4,)]
    assert [way.name for way in candidates(work, narrow, 2, ()) if way.fits] == ["pipeline 2", "naive split 2"]
    assert candidates(work, replace(narrow, memory=4e6), 2, ())[-1].layout.cuts == (6,)  # nothing fits anyway


def test_the_last_stage_keeps_the_activations_of_one_micro_batch() -> None:
    """And the first one of two. Cut where times are equal, the second stage would have three layers of four."""
    work = replace(
        WORK, layers=[Layers(t, t, 4e6, kept) for t, kept in ((3, 0.0), (1, 0.0), (1, 1e6), (1, 1e6))], batch=16
    )
    records = 2  # of each of the 8 micro batches that two stages have usually
    most = 4 * 2 * 4e6 + records * 2 * 1e6 + 1
    way = candidates(work, Cluster(FAST, FAST, memory=most), 2, ())[-2]
    assert (way.name, way.layout.micro_batches, way.layout.cuts, way.fits) == ("pipeline 2", 8, (2,), True)


def test_a_plan_of_few_records_has_no_ways_for_many_workers() -> None:
    plan = plan_of(Cluster(FAST, FAST), (1, 4096), replace(WORK, batch=64))
    assert list(plan.ways) == [1]


def test_measured_times_decide_where_there_are_any() -> None:
    ways = candidates(WORK, Cluster(SLOW, SLOW), 2, ())
    times = {"ring": 1.01, "ZeRO-1": 1.0, "ZeRO-2": 0.5, "pipeline 2": 2.0}
    found = [Verified(name, 1.0, [time] * 5) for name, time in times.items()]
    assert measured_best(ways, []) is None
    for some, name in ((found, "ZeRO-2"), (found[:2], "ring")):
        best = measured_best(ways, some)
        assert best is not None
        assert best.name == name


def test_a_plan_into_which_nothing_fits_leaves_no_earlier_config(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("of another plan")
    write_plan(plan_of(Cluster(FAST, FAST, memory=1e3)), TrainConfig(), TorchDigits, 2, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "plan.svg"]


def test_a_folder_that_cannot_be_is_refused_in_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "plan", tmp_path / ("a" * 300)):
        with pytest.raises(UsageError, match="--out"):
            require_folder(folder)


FOREIGN = (("plan.yaml", "# my settings\nlr: 0.01\n"), ("plan.json", '{"notes": 1}'), ("plan.svg", "<svg/>"))


def test_files_that_are_no_plans_are_not_replaced(tmp_path: Path) -> None:
    for name, content in FOREIGN:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(UsageError, match=f"{name} was not written by"):
            require_folder(folder)
        assert (folder / name).read_text() == content


def test_an_earlier_plan_is_replaced_but_not_the_config_of_this_one(tmp_path: Path) -> None:
    write_plan(plan_of(Cluster(SLOW, SLOW, memory=64e9)), TrainConfig(), TorchDigits, 16, tmp_path)
    require_folder(tmp_path, "another.yaml")
    with pytest.raises(UsageError, match="The recommended config would replace it"):
        require_folder(tmp_path, str(tmp_path / "plan.yaml"))


def test_a_plan_of_one_worker_is_drawn_without_a_legend(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    plan = plan_of(Cluster(SLOW, SLOW, memory=64e9))
    alone = replace(plan, ways={1: plan.ways[min(plan.ways)][:1]}, recommended={})
    write_plan(alone, TrainConfig(), TorchDigits, 1, tmp_path)
    assert not recwarn.list


def test_it_is_told_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(Cluster(SLOW, SLOW, memory=64e9))
    print_plan(replace(plan, verified=[Verified("ring", 1.0, [1.1, 1.2, 1.3])]), 16)
    told = capsys.readouterr().out
    assert "\n16 workers\n" in told
    assert "> pipeline" in told
    assert "-17%" in told
    lines = write_plan(plan, TrainConfig(), TorchDigits, 16, tmp_path / "plan")
    assert lines[0].startswith("recommended for 16 workers: pipeline")
    saved = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert saved["recommended"]["16"] in {way["name"] for way in saved["ways"]["16"]}
    assert (tmp_path / "plan" / "plan.svg").read_text().startswith("<?xml")
    config = parse_train_config(["--config", str(tmp_path / "plan" / "plan.yaml")])
    best = plan.recommended[16]
    assert best is not None
    assert config == config_of(best.layout, TrainConfig())


def test_a_plan_into_which_nothing_fits_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_of(Cluster(FAST, FAST, memory=1e3)), 2)
    assert "No way fits into the memory. " in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 63, 79, 100])
def test_no_name_breaks_over_lines_and_no_line_is_wider_than_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the ways and the simulated jobs, for the numbers of workers that a plan has by default."""
    plan = plan_of(Cluster(SLOW, SLOW, memory=2e10), COUNTS, replace(WORK, batch=2.0**17))
    assert any(not way.fits for ways in plan.ways.values() for way in ways)
    verified = [Verified(way.name, 1.0, [0.9, 1.1]) for way in plan.ways[16]]
    print_plan(replace(plan, verified=verified), 16, all_tables=True, width=width)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    for workers, ways in plan.ways.items():
        assert f"{workers:,} worker{'s' * (workers > 1)}" in lines
        for way in ways:
            mark = ">" if way is plan.recommended[workers] else " " if way.fits else "!"
            assert any(line.startswith(f"{mark} {way.name}  ") for line in lines), way.name
    if width >= 79:
        assert (
            sum(line.split()[:6] == ["way", "step", "exchange", "idle", "records/s", "memory"] for line in lines) == 14
        )
        heads = ["workers", "hours", "goodput", "slow", "failures", "saving", "failed", "save every"]
        assert any(re.split(" {2,}", line.strip()) == heads for line in lines)


def test_one_table_is_printed_and_the_rest_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this job's number of workers, if the plan has it."""
    plan = plan_of(Cluster(SLOW, SLOW, memory=64e9), (1, 8, 64))
    for workers, shown in ((8, "8 workers"), (2, "1 worker"), (64, "64 workers")):
        print_plan(plan, workers)
        told = capsys.readouterr().out
        titles = [line for line in told.splitlines() if re.fullmatch(r"\d+ workers?", line)]
        assert titles == [shown]
        assert "simulated" not in told.partition("--all-tables")[0]
        assert told.count("--all-tables") == 1
    print_plan(plan, 8, all_tables=True)
    told = capsys.readouterr().out
    assert [title for title in ("1 worker", "8 workers", "64 workers", "simulated") if title in told] != []
    assert "--all-tables" not in told
    assert parse(["--all-tables"])[0].all_tables
    assert not parse([])[0].all_tables


def test_the_command_that_starts_a_plan_is_a_line_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    lines = write_plan(plan_of(Cluster(SLOW, SLOW, memory=64e9)), TrainConfig(), TorchDigits, 16, folder)
    assert lines[-1] == f"hvdtrain launch local -np 16 -- train --config {folder}/plan.yaml"


def test_options() -> None:
    options, rest = parse(["--workers", "8,2", "--link", "200Mbit,30us", "--memory", "2GiB", "--task", "text"])
    request = request_of(options)
    assert request.counts == (2, 8)
    assert request.link == LinkModel(pytest.approx(3e-5), 25e6)
    assert request.memory == 2 * 2**30
    assert rest == ["--task", "text"]
    assert request_of(parse(["--link", "10Gbit"])[0]).link == LinkModel(pytest.approx(5e-5), 1.25e9)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--link", "fast"],
        ["--link", "0Mbit"],
        ["--workers", "0"],
        ["--workers", "a"],
        ["--ratios", "-1"],
        ["--memory", "much"],
        ["--memory", "0"],
        ["--jitter", "-1"],
        ["--jitter", "30"],
        ["--out", ""],
        ["--mtbf", "0"],
    ],
)
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(wrong)
