"""A process that is killed at any moment of saving leaves the old checkpoint or the new one, never a part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import Forker

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "checkpoint_killer.py"

# scenario: (step and content that load while the new one is not there, those of the new one)
SCENARIOS = {
    "the first": ((None, None), (1, 1.0)),
    "a second": ((1, 1.0), (2, 2.0)),
    "keeping one": ((1, 1.0), (2, 2.0)),
    "removing the oldest": ((2, 2.0), (3, 3.0)),
    "in parts": ((1, 1.0), (2, 2.0)),
}


def kill_at_every_moment(forker: Forker, scenario: str, folder: Path, saves: bool = True) -> list[dict[str, Any]]:
    done = forker.run_python([str(SCRIPT), str(folder), scenario], folder.parent)
    assert done.code == 0, done.stderr
    moments: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(moments) > (15 if saves else 8), "too few moments: were the operations seen?"
    operations = {moment["before"][0] for moment in moments[:-1]}
    assert {"open", "write", "os.rename", "os.fsync"} | ({"os.mkdir"} if saves else set()) <= operations
    assert moments[-1]["before"] is None
    return moments


def require_sound_afterwards(moments: list[dict[str, Any]], next_step: int) -> None:
    for moment in moments:
        assert moment["whole"], moment
        assert moment["latest_is_there"], moment
        assert moment["then_loads"] == next_step, moment
        assert moment["then_latest"] == f"step_{next_step:08d}", moment
        assert moment["then_left"] == [], moment


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_old_or_the_new_one_loads(scenario: str, forker: Forker, tmp_path: Path) -> None:
    old, new = SCENARIOS[scenario]
    moments = kill_at_every_moment(forker, scenario, tmp_path)
    seen = [(moment["loads"], moment["content"]) for moment in moments]
    turn = seen.index(new)
    assert seen == [old] * turn + [new] * (len(seen) - turn)
    assert 0 < turn < len(seen) - 1
    require_sound_afterwards(moments, next_step=int(new[0]) + 1)


@pytest.mark.parametrize(("scenario", "step"), [("a new best", 3), ("validated late", 2)])
def test_the_best_checkpoint_is_always_there(scenario: str, step: int, forker: Forker, tmp_path: Path) -> None:
    """Whatever the newest manifest knows as the best, and whatever `best` points to."""
    moments = kill_at_every_moment(forker, scenario, tmp_path, saves=scenario != "validated late")
    for moment in moments:
        assert f"step_{moment['known_best']:08d}" in moment["kept"], moment
        assert moment["best"] in moment["kept"], moment
        assert moment["whole"], moment
    known = [moment["known_best"] for moment in moments]
    turn = known.index(step)
    assert known == [1] * turn + [step] * (len(known) - turn)
    assert 0 < turn < len(known) - 1
    assert (moments[-1]["best"], moments[-1]["kept"]) == (f"step_{step:08d}", [f"step_{step:08d}"])


def test_a_run_that_went_back_never_loses_what_it_came_from(forker: Forker, tmp_path: Path) -> None:
    """Resumed from step 1 where 2 and 3 were already there: until the new step 2 stands, one of the old ones loads."""
    moments = kill_at_every_moment(forker, "after going back", tmp_path)
    allowed = {(1, 1.0), (2, 2.0), (2, 2.5), (3, 3.0)}
    assert {(moment["loads"], moment["content"]) for moment in moments} <= allowed
    assert (moments[-1]["loads"], moments[-1]["content"], moments[-1]["latest"]) == (2, 2.5, "step_00000002")
    require_sound_afterwards(moments, next_step=3)
