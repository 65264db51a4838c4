"""What people see of a run on several ranks, and the README's first line: eight workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes import python_path
from support.ranks import run_ranks
from support.runs import read_json

WORKERS = Path(__file__).parent / "workers"


def lines_of_ranks(output: str) -> set[str]:
    """Ranks that wrote something, by horovodrun's tags: `[1,0]<stderr>:` with MPI, `[0]<stderr>:` with Gloo."""
    return set(re.findall(r"^\[(?:1,)?(\d+)\]<std", output, re.MULTILINE))


@pytest.mark.parametrize("launcher", ["horovodrun", "horovodrun-gloo"])
def test_bar_passes_the_launcher_and_only_rank_0_is_seen(launcher: str, tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "--progress", "bar", "--max-steps", "35", "--output-dir", "out"]
    finished = run_ranks(command, 3, launcher, 180, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert re.search(r"\r[^\n]*epoch 2/12[^\n]*\|[^\n]* 35/360 ", finished.stderr), finished.tail()
    assert lines_of_ranks(finished.stdout) == lines_of_ranks(finished.stderr) == {"0"}, finished.tail()
    assert "3 workers" in finished.stdout, finished.tail()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_lines_where_nobody_watches_and_a_log_for_every_rank(launcher: str, tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "--max-steps", "35", "--output-dir", "out"]
    finished = run_ranks(command, 3, launcher, 180, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert "\r" not in finished.stderr, finished.tail()
    assert "Next: " not in finished.stdout, finished.tail()
    for what in ("epoch 1/12", "stopped at step 35"):
        assert len(re.findall(f"{what}  train .*  validation ", finished.stderr)) == 1, finished.tail()
    logs = sorted((tmp_path / "out" / "logs").iterdir())
    assert [log.name for log in logs] == ["rank_0.log", "rank_1.log", "rank_2.log"]
    for log in logs:
        assert "epoch 1, step 30: " in log.read_text()
        assert "step 35" in log.read_text()


@pytest.mark.timeout(600)
def test_eight_workers_on_any_number_of_cores(tmp_path: Path) -> None:
    """They start on an empty cache, all at once: one of them writes the data, the others wait and read."""
    cache, writers = tmp_path / "cache", tmp_path / "writers"
    writers.mkdir()
    env = {
        "HVDTRAIN_CACHE_DIR": str(cache),
        "AUDIT_FOLDER": str(writers),
        **python_path(WORKERS / "train_audit"),
    }
    finished = run_ranks(["python", "-m", "hvdtrain"], 8, "horovodrun", 400, env=env, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("Next: `hvdtrain --task ") == 1, finished.tail()
    (result,) = (read_json(path) for path in tmp_path.glob("runs/*/result.json"))
    assert result["world_size"] == 8
    assert result["metrics"]["accuracy"] >= 0.97
    assert result["samples_seen"] == 12 * 1438
    assert result["weights"]["equal_on_all_ranks"]
    assert len(list(writers.iterdir())) == 1, "several processes wrote the data"
    names = [path.name for path in cache.rglob("*") if path.is_file()]
    assert len([name for name in names if name.endswith(".tfrecord")]) == 8, names
    assert not [path for path in cache.rglob("*") if path.name.endswith(".tmp")], names
