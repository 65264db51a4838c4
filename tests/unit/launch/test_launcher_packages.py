"""Launchers of other packages: a real small package, found by its entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.added_packages import install

from hvdtrain.cli.launch import BUILT_IN, launcher_names, load_launcher

MODULE = """
from dataclasses import replace

from hvdtrain.launch import local, option_groups
from hvdtrain.launch.launcher_api import Launcher, job_from, print_or_execute, require_outside_job, this_host
from hvdtrain.launch.rendering import LaunchPlan, resource_notes


def submit(options, command):
    job = job_from(options, command)
    argv = ("qsub", "-pe", "mpi", str(job.np), "-q", options.queue, *job.argv)
    return print_or_execute(LaunchPlan(launcher="Grid Engine", argv=argv, notes=resource_notes(job)), options.dry_run)


def run_here(options, command):
    require_outside_job()
    job = job_from(options, command, this_host(options.np))
    return local.run(job, environment={"PATH": "/usr/bin:/bin", "FROM_LAUNCHER": "yes"}, command=(
        job.python, "-c", "import os; print(os.environ['HOROVOD_RANK'], os.environ['FROM_LAUNCHER'])"))


QUEUE = option_groups.option("--queue", default="gpu.q", help="queue (default: gpu.q)")
ENGINE = Launcher("a job of Grid Engine", (*option_groups.JOB, QUEUE), submit)
HERE = Launcher(
    "like local", (*option_groups.JOB, *option_groups.RESTARTS, option_groups.start_timeout(60.0)), run_here
)
OTHER = "not a launcher"
"""
ENTRY_POINTS = """[hvdtrain.launchers]
engine = more_launchers:ENGINE
here = more_launchers:HERE
other = more_launchers:OTHER
gone = more_launchers:GONE
local = more_launchers:ENGINE
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    install(tmp_path, "more-launchers", MODULE, ENTRY_POINTS)
    return tmp_path


def launch(packages: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(packages), str(Path(__file__).parents[3])])
    return subprocess.run(
        [sys.executable, "-m", "hvdtrain", "launch", *argv],
        env={"PATH": os.environ["PATH"], "HOME": str(packages), "PYTHONPATH": path},
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_launcher_that_renders(packages: Path) -> None:
    done = launch(packages, "engine", "-np", "4", "--queue", "big.q", "--dry-run", "--", "train", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert "exec qsub" in done.stdout
    assert "-q big.q" in done.stdout
    assert done.stdout.endswith("-m hvdtrain train \\\n    --epochs 3\n")
    refused = launch(packages, "engine", "-np", "4", "--dry-run", "--", "train", "--epoch", "3")
    assert (refused.returncode, "did you mean --epochs?" in refused.stderr) == (2, True), refused.stderr


def test_a_launcher_that_starts_processes_here(packages: Path) -> None:
    done = launch(packages, "here", "-np", "2", "--", "env")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 yes", "[1] 1 yes"]


def test_help_lists_them_and_what_is_wrong_is_refused(packages: Path) -> None:
    page = launch(packages, "--help").stdout
    assert "  engine      a job of Grid Engine\n" in page
    assert "  gone        cannot be used: 'gone' of hvdtrain.launchers cannot be imported" in page
    assert "did you mean 'engine'" in launch(packages, "engin").stderr
    assert "is of type str" in launch(packages, "other").stderr
    assert "cannot be imported from more_launchers:GONE" in launch(packages, "gone").stderr
    assert "workers on this machine" in launch(packages, "local", "--help").stdout


def test_ours_are_found_in_the_same_way() -> None:
    assert launcher_names()[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(load_launcher(name).line for name in BUILT_IN)
