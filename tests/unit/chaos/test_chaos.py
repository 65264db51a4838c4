"""The schedule of faults, what a drill tells of them, and what the command refuses."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import mean

import pytest

from hvdtrain.chaos.drill import Drill
from hvdtrain.chaos.faults import KINDS, Fault, Job, inject, schedule
from hvdtrain.cli.main import main


def test_the_same_seed_gives_the_same_faults_of_all_kinds_for_all_ranks() -> None:
    one, same, other = (list(islice(schedule(seed, KINDS, 3, 5.0), 2000)) for seed in (1, 1, 2))
    assert one == same != other
    assert {fault.kind for fault in one} == set(KINDS)
    assert {fault.rank for fault in one} == {0, 1, 2}
    assert 4.5 < mean(fault.after for fault in one) < 5.5


def test_what_a_drill_tells() -> None:
    restarts = [{"seconds": seconds} for seconds in (3.0, 1.0, 2.0)]
    drill = Drill(0, ["a", "b"], True, {"restarts": restarts, "lost_steps": 7, "share": 0.834}, "abc")
    assert drill.survived
    assert dict(drill.rows()) == {
        "faults": "2",
        "ended": "well",
        "coverage": "exact",
        "restarts": "3",
        "until training went on": "2.0 s in the middle, 3.0 s at most",
        "steps trained again": "7",
        "goodput": "83% of the time trained the final weights",
    }
    assert not Drill(0, exact=False).survived
    assert not Drill(1, exact=True).survived


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_that_comes_too_late_does_nothing(kind: str, tmp_path: Path) -> None:
    job = Job(2, 0, ["train", "--output-dir", str(tmp_path)])
    assert inject(job, Fault(kind, 0.1, 1, 0.1, 0.5)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--", "train"], "The command to disturb is `train`."),
        (["--", "env", "--output-dir", "x"], "The command to disturb is `env --output-dir x`."),
        (["--faults", "kil", "--", "train", "--output-dir", "x"], "There is no fault 'kil'."),
        (["--faults", "", "--", "train", "--output-dir", "x"], "There is no fault ''."),
        (["--every", "often", "--", "train", "--output-dir", "x"], "--every is often."),
        (["--for", "-1", "--", "train", "--output-dir", "x"], "--for is -1."),
        (["--save", "absent/x.json", "--", "train", "--output-dir", "x"], "--save absent/x.json cannot be written."),
        (["--compare", "--save", "absent/x.json", "--", "train", "--output-dir", "."], "x.json cannot be written."),
    ],
)
def test_refusals(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["chaos", *words]) == 2
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["out", "out-undisturbed"])
def test_a_run_that_is_there_proves_nothing(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "result.json").write_text("{}")
    assert main(["chaos", "--compare", "--", "train", "--output-dir", str(tmp_path / "out")]) == 2
    assert f"{tmp_path / folder} is already there." in capsys.readouterr().err
