"""The options of the learning-rate schedule: what they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.config_samples import parse

from hvdtrain.algorithms.lr_schedule import Schedule
from hvdtrain.config.schedule_options import ScheduleOptions, schedule_of
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.errors import UsageError


@pytest.mark.parametrize("given", [["30,60.5,80"], ["[30, 60.5, 80]"], ["30, 60.5, 80"]])
@pytest.mark.parametrize("flag", ["--lr-milestones", "--lr_milestones"])
@pytest.mark.parametrize("joined", [False, True])
def test_milestones_are_written_as_a_list_or_with_commas(
    given: list[str], flag: str, joined: bool, tmp_path: Path
) -> None:
    argv = [f"{flag}={given[0]}"] if joined else [flag, *given]
    config = parse("--lr-schedule", "step", *argv, "--lr", "0.5")
    assert (config.lr_milestones, config.lr) == ([30.0, 60.5, 80.0], 0.5)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    assert parse("--config", str(tmp_path / "run.yaml")) == config


def test_one_milestone_is_a_list_too(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("lr_schedule: step\nlr_milestones: [3]\n")
    for argv in (["--lr-schedule", "step", "--lr-milestones", "3"], ["--config", str(tmp_path / "run.yaml")]):
        assert parse(*argv).lr_milestones == [3.0]


def test_flags_become_a_schedule_in_steps() -> None:
    flags = ScheduleOptions("step", lr_milestones=[3, 4.5], lr_gamma=0.5)
    assert schedule_of(flags, 0.2, 6, 1.5, 10) == Schedule(0.2, 60, 15, "step", milestones=(30, 45), gamma=0.5)
    flags = ScheduleOptions("polynomial", lr_power=3.0, lr_min=0.1)
    assert schedule_of(flags, 0.2, 6, 0, 10) == Schedule(0.2, 60, 0, "polynomial", least=0.1, power=3.0)


ILL = [
    ({"lr_power": 2.0}, "--lr-power 2 is given with --lr-schedule cosine"),
    ({"lr_gamma": 0.1}, "--lr-gamma 0.1 is given with --lr-schedule cosine"),
    ({"lr_milestones": [3.0]}, "--lr-milestones 3 is given with --lr-schedule cosine"),
    ({"lr_schedule": "step", "lr_milestones": [3.0], "lr_min": 0.1}, "--lr-min 0.1 is given with --lr-schedule step"),
    ({"lr_schedule": "constant", "lr_min": 0.0}, "--lr-min 0 is given with --lr-schedule constant"),
    ({"lr_schedule": "step"}, "--lr-schedule step is given without --lr-milestones"),
    ({"lr_schedule": "step", "lr_milestones": []}, "--lr-schedule step is given without --lr-milestones"),
    ({"lr_schedule": "step", "lr_milestones": [3.0, 2.0]}, "--lr-milestones is 3,2"),
    ({"lr_schedule": "step", "lr_milestones": [3.0, 3.0]}, "--lr-milestones is 3,3"),
    ({"lr_schedule": "step", "lr_milestones": [0.0]}, "--lr-milestones is 0"),
    ({"lr_schedule": "step", "lr_milestones": [float("nan")]}, "--lr-milestones is nan"),
    ({"lr_schedule": "step", "lr_milestones": [3.0], "lr_gamma": 1.0}, "--lr-gamma is 1.0"),
    ({"lr_schedule": "step", "lr_milestones": [3.0], "lr_gamma": 0.0}, "--lr-gamma is 0.0"),
    ({"lr_schedule": "polynomial", "lr_power": 0.0}, "--lr-power is 0.0"),
    ({"lr_min": -1.0}, "--lr-min is -1.0"),
    ({"lr_min": float("nan")}, "--lr-min is nan"),
]


@pytest.mark.parametrize(("given", "fact"), ILL, ids=[fact for _, fact in ILL])
def test_what_cannot_work_is_refused(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(UsageError) as refused:
        ScheduleOptions(**given)
    assert refused.value.fact.startswith(fact)
    assert refused.value.conflict
    assert refused.value.hint


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (ScheduleOptions("step", lr_milestones=[3, 6]), "--lr-milestones has 6, and training ends after 6 epochs"),
        (ScheduleOptions("step", lr_milestones=[0.5, 5]), "--lr-milestones has 0.5, and the warm-up takes 1 epochs"),
        (ScheduleOptions(lr_min=0.2), "--lr-min is 0.2, and the peak of the learning rate 0.2"),
    ],
)
def test_what_does_not_fit_the_training_is_refused(flags: ScheduleOptions, fact: str) -> None:
    with pytest.raises(UsageError) as refused:
        schedule_of(flags, 0.2, 6, 1, 10)
    assert refused.value.fact.startswith(fact)


def test_a_warm_up_that_never_ends_is_refused() -> None:
    with pytest.raises(UsageError, match="Warm-up takes 60 steps of 60"):
        schedule_of(ScheduleOptions(), 0.2, 6, 6, 10)


@pytest.mark.parametrize("argv", [["--lr-milestones"], ["--lr-milestones", "--lr", "3"], ["--lr-milestones", "a,b"]])
def test_a_list_without_numbers_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="lr.milestones"):
        parse("--lr-schedule", "step", *argv)


def test_there_is_no_second_way_to_write_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """jsonargparse offers to append by --lr-milestones+, which would be one more thing to know."""
    with pytest.raises(UsageError, match=r"There is no option --lr-milestones\+"):
        parse("--lr-schedule", "step", "--lr-milestones+", "3")
    with pytest.raises(SystemExit):
        parse("--help-all")
    assert "milestones+" not in capsys.readouterr().out
