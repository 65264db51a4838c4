"""Two ranks with all loggers: rank 0 alone writes, of what both have measured. And what people see of such a run."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_command
from support.runs import lines_of, read_json

PAGE = (Path(__file__).parents[2] / "docs" / "loggers.md").read_text()
(BLOCK,) = re.findall(r"<!-- tested by tests/parallel/test_loggers.py -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
AS_ROOT = [f"{program}_ALLOW_RUN_AS_ROOT{end}" for program in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder in which the command of docs/loggers.md was run, and how it ended."""
    folder = tmp_path_factory.mktemp("logged")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = run_command(["bash", "-euc", BLOCK], 240, env={"PATH": path, **dict.fromkeys(AS_ROOT, "1")}, cwd=folder)
    assert ended.returncode == 0, ended.tail()
    warnings = [line for line in ended.stderr.splitlines() if "WARNING" in line]
    assert not [line for line in warnings if " is slow by " not in line], ended.tail()  # the machine may be busy
    return folder, ended


def test_each_logger_has_the_run_once(finished: tuple[Path, Any]) -> None:
    folder, _ = finished
    (events,) = folder.glob("LOGGED/tb/*")
    assert events.read_bytes().count(b"pictures/image/3") == 3  # the last one in each epoch
    assert len(list(folder.glob("LOGGED/wandb/offline-run-*/*.wandb"))) == 1
    runs = [path.parent.name for path in folder.glob("mlruns/*/*/meta.yaml")]
    assert runs == [read_json(folder / "LOGGED" / "mlflow.json")["id"]]


def test_the_metrics_are_those_of_both_ranks(finished: tuple[Path, Any]) -> None:
    folder, _ = finished
    lines = lines_of(folder / "LOGGED")
    measured = [line for line in lines if "split" in line]
    with (folder / "LOGGED" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["split"], int(row["step"])) for row in rows] == [(line["split"], line["step"]) for line in measured]
    for row, line in zip(rows, measured, strict=True):
        if line["split"] == "train":
            assert len(line["memory"]["ranks"]) == 2
            assert line["grad_norm_peak"] >= line["grad_norm"] == float(row["grad_norm"]) > 0


def test_the_first_lines_and_the_table_are_whole_behind_the_launchers_tags(finished: tuple[Path, Any]) -> None:
    _, ended = finished
    untagged = [re.sub(r"^\[(?:1,)?0\]<stdout>: ?", "", line) for line in ended.stdout.splitlines()]
    assert untagged != ended.stdout.splitlines(), "the launcher tags no lines"
    head = next(line for line in untagged if line.startswith("hvdtrain: "))
    assert re.search(r" on CPU, 2 workers by (horovodrun|mpirun) on 1 node \(\w+=2\)$", head), head
    assert any(line.startswith("run folder: LOGGED; Python ") for line in untagged)
    rows = [line for line in untagged if line.startswith("│")]
    assert len(rows) >= 8, untagged
    assert len({len(row) for row in rows}) == 1, rows
