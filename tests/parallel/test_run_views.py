"""A training on two ranks as `hvdtrain top`, `logs`, `ls` and `compare` see it, while it runs and afterwards."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.jobs import Job
from support.processes import Spawned, run_command
from support.runs import read_json

from hvdtrain.history.heartbeats import read_heartbeats

DEADLINE_S = 150.0
TRAIN = ["--epochs", "2000", "--output-dir", "runs/long", "--log-level", "debug", "--progress", "none"]
MANY = ["--epochs", "2000", "--output-dir", "runs/many", "--progress", "none", "--metrics-detail", "summary"]
"""As 64 workers and more do it."""

_CHANGING = shutil.ignore_patterns("*.tmp", "checkpoints")  # old checkpoints may vanish while they are copied


def view(folder: Path, *argv: str) -> str:
    done = run_command(["python", "-m", "hvdtrain", *argv], DEADLINE_S, cwd=folder, interpreter="fresh")
    assert done.returncode == 0, done.tail()
    return done.stdout


def await_look(folder: Path, job: Job) -> str:
    """What `top` shows once both ranks have told that they train."""
    beats = [folder / "runs" / "long" / "heartbeats" / f"rank_{rank}.json" for rank in range(2)]
    job.await_that(
        lambda: all(beat.exists() and read_json(beat)["step"] > 0 for beat in beats), "heartbeats", DEADLINE_S
    )
    return view(folder, "top", "--once", "runs/long")


@pytest.mark.timeout(600)
def test_a_run_is_seen_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    with Job(tmp_path, ["-np", "2"], TRAIN) as job:
        look = await_look(tmp_path, job)
        assert re.match(r"long +running +torch, 2 ranks on \S+\n", look), look
        assert re.search(r"step [\d,]+/60,000", look), look
        states = r"(?:starting|data|step|waiting in \S+|validation: data|validation|checkpoint)(?:, last \S+ \S+)?"
        ranks = re.findall(rf"^ +(\d+) +{states} +[\d,]+ .*iB +\d s ago *$", look, re.MULTILINE)
        assert ranks == ["0", "1"], look
        assert re.search(r"^long +running +torch +digits +2 ", view(tmp_path, "ls"), re.MULTILINE)
        shutil.copytree(tmp_path / "runs" / "long", tmp_path / "runs" / "copy", ignore=_CHANGING)
        followed = Spawned([sys.executable, "-m", "hvdtrain", "logs", "runs/long", "--follow"], cwd=tmp_path)
        job.process.send_signal(signal.SIGTERM)
        shown = followed.wait(DEADLINE_S)  # it ends as the run does
        assert job.ended(DEADLINE_S) == 75, job.output
    assert shown.returncode == 0, shown.tail()
    out = shown.stdout
    whole = view(tmp_path, "logs", "runs/long").splitlines()
    for rank in (0, 1):
        own = (tmp_path / "runs" / "long" / "logs" / f"rank_{rank}.log").read_text().splitlines()
        assert any("run ended: " in line for line in own)
        for lines in (out.splitlines(), whole):
            assert [line.partition("  ")[2] for line in lines if line.startswith(f"rank {rank} ")] == own
    times = [line.split()[2] for line in whole]
    assert times == sorted(times)
    assert "DEBUG hvdtrain.run: epoch 1, step 1\n" in out

    listed = {one["name"]: one for one in json.loads(view(tmp_path, "ls", "--json"))}
    assert (listed["long"]["state"], listed["long"]["problems"]) == ("stopped", [])
    assert listed["copy"]["state"] == "lost"
    ended = view(tmp_path, "top", "--once", "runs/long")
    assert len(re.findall(r"^ +\d +ended ", ended, re.MULTILINE)) == 2, ended
    found = json.loads(view(tmp_path, "compare", "--json", "runs/long", "runs/copy"))
    assert (found["config"], found["environment"], found["data"]["same_batches"]) == ({}, {}, True)
    assert 0 < found["outcome"]["steps"]["values"][1] < found["outcome"]["steps"]["values"][0]


@pytest.mark.timeout(600)
def test_workers_of_a_host_write_one_file_of_heartbeats(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "many"
    with Job(tmp_path, ["-np", "2"], MANY) as job:
        job.await_that(lambda: steps_of(run).keys() == {0, 1} and min(steps_of(run).values()) > 0, "steps", DEADLINE_S)
        look = view(tmp_path, "top", "--once", "runs/many")
        assert re.match(r"many +running +torch, 2 ranks on \S+\n", look), look
        job.process.send_signal(signal.SIGTERM)
        assert job.ended(DEADLINE_S) == 75, job.output
    files = {path.name for path in (run / "heartbeats").glob("*.json")}
    assert "host_of_rank_0.json" in files
    assert not any(name.startswith("rank_") for name in files)
    assert {heard.beat.end for heard in read_heartbeats(run).values()} == {"ended"}


def steps_of(run: Path) -> dict[int, int]:
    return {rank: heard.beat.step for rank, heard in read_heartbeats(run).items()}
