"""What `hvdtrain launch spark` asks of Spark and refuses, without one; tests/parallel/test_launch_spark.py has one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.cli.main import main
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.spark.failures import why_refused
from hvdtrain.launch.spark.request import Request
from hvdtrain.launch.spark.settings import settings_for

ROOT = Path(__file__).parents[4]
DEADLINE_S = 60.0

SHOWN = """\
# hvdtrain launch spark: 8 workers
#
# cluster: spark://node1:7077
# barrier stage: 8 tasks, which begin together; it waits for room for 90 s
# threads: 8 for each worker, as --cpus-per-worker says
# interpreter: /opt/python
# start: a task on each executor starts its workers, which meet at this machine; no ssh, no MPI
# setting: spark.cores.max=64
# setting: spark.log.level=ERROR
# setting: spark.ui.enabled=false
# setting: spark.ui.showConsoleProgress=false
# setting: spark.executor.cores=32
# setting: spark.executor.resource.gpu.amount=4
# setting: spark.executor.memory=4g
# setting: spark.app.name=hvdtrain
# setting: spark.task.cpus=8
# setting: spark.task.resource.gpu.amount=1
# setting: spark.dynamicAllocation.enabled=false
# setting: spark.speculation=false
# setting: spark.stage.maxConsecutiveAttempts=1
# setting: spark.python.worker.reuse=false
/opt/python -m hvdtrain train --max-steps 3
"""


def test_the_text_is_the_one_on_record(capsys: pytest.CaptureFixture[str]) -> None:
    needs = ["--cpus-per-worker", "8", "--gpus-per-worker", "1", "--slots-per-host", "4"]
    where = ["--master", "spark://node1:7077", "--python", "/opt/python", "--wait", "90"]
    argv = ["launch", "spark", "-np", "8", *needs, *where, "--conf", "spark.executor.memory=4g", "--dry-run"]
    assert main([*argv, "--", "train", "--max-steps", "3"]) == 0
    assert capsys.readouterr().out == SHOWN


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "The number of workers is not known."),
        (["-np", "0"], "-np is 0."),
        (["-np", "2", "--cpus-per-worker", "0"], "A worker takes 0 CPUs and 0 GPUs."),
        (["-np", "2", "--gpus-per-worker", "-1"], "A worker takes 1 CPUs and -1 GPUs."),
        (["-np", "2", "--slots-per-host", "0"], "--slots-per-host is 0."),
        (["-np", "2", "--conf", "executor.memory=4g"], "--conf is 'executor.memory'."),
        (["-np", "2", "--conf", "spark.executor.memory"], "--conf is 'spark.executor.memory'."),
        (["-np", "2", "--conf", "spark.task.cpus=2"], "use --cpus-per-worker instead."),
        (["-np", "2", "--conf", "spark.speculation=true"], "--conf sets spark.speculation."),
        (["-np", "2", "--wait", "nan"], "--wait is nan."),
        (["-np", "2", "--max-restarts", "2", "--min-workers", "1"], "--min-workers is given."),
        (["-np", "2", "--max-restarts", "2", "--max-workers", "3"], "--max-workers is given."),
        (["-np", "2", "--pass-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is to be passed on."),
        (["-np", "2", "--master", "local[2]"], "That is this machine alone."),
        (["-np", "2", "--master", "node1:7077"], "The master of the Spark cluster is 'node1:7077'."),
    ],
)
def test_what_is_refused(flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "spark", *flags, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert text in said.err
    assert said.err.count("HINT: ") == 1
    assert said.out == ""


def test_an_environment_without_pyspark_is_told_so() -> None:
    lines = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hvdtrain.cli.main import main; "
    argv = [sys.executable, "-I", "-S", "-c", f"{lines} sys.exit(main(['launch', 'spark', '-np', '1']))"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2, done.stderr
    assert "PySpark is not installed here." in done.stderr
    assert "HINT: pip install 'hvdtrain[spark]'" in done.stderr


def test_a_job_takes_whole_executors_and_no_more() -> None:
    """Else a standalone cluster gives all of its cores, or parts of executors in which no worker has room."""
    three = JobSpec(command=("train",), np=3)
    assert settings_for(three, 2, 0, [])["spark.cores.max"] == "6"
    assert settings_for(three, 2, 0, [])["spark.executor.cores"] == "2"
    pairs = JobSpec(command=("train",), np=3, slots_per_host=2)
    assert settings_for(pairs, 2, 0, [])["spark.cores.max"] == "8"
    assert settings_for(pairs, 2, 0, [])["spark.executor.cores"] == "4"
    assert settings_for(three, 1, 0, ["spark.cores.max=9"])["spark.cores.max"] == "9"


REQUEST = Request("spark://node1:7077", 2, {}, "/opt/python", 60.0, 15.0)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed "
            'barrier ResultStage.\nCaused by: java.io.IOException: Cannot run program "/opt/python": error=2, No such '
            "file or directory\n\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)\n",
            "The Spark executors cannot start /opt/python: No such file or directory.",
        ),
        (
            "org.apache.spark.SparkException: Job aborted.\nTraceback (most recent call last):\n"
            "ModuleNotFoundError: No module named 'pyspark'\n",
            "The stage on the Spark cluster failed: ModuleNotFoundError: No module named 'pyspark'.",
        ),
        ("task 1 on node2 has ended", "The stage on the Spark cluster failed: task 1 on node2 has ended."),
    ],
)
def test_what_a_failed_stage_means(text: str, fact: str) -> None:
    assert why_refused(text, REQUEST).fact == fact
