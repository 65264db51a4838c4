"""`hvdtrain launch spark` on a real Spark cluster of two workers on this machine: it trains, and how jobs end."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.placed_jobs import DEADLINE_S, GONE_S, ROOT, PlacedJob
from support.process_table import command_of
from support.processes import Spawned, environment, free_port, python_path, run_command
from support.runs import result_of
from support.spark_cluster import SparkCluster

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
pytestmark = pytest.mark.skipif(not HAS_SPARK, reason="PySpark is an extra")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, a package of the system")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark"), ROOT) as running:
        yield running


Start = Callable[..., PlacedJob]


@pytest.fixture
def start(cluster: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    launcher = ["spark", "--master", cluster.master]
    with ExitStack() as jobs:

        def begin(*options: str, flags: tuple[str, ...] = ()) -> PlacedJob:
            return jobs.enter_context(PlacedJob(launcher, cluster.await_empty, tmp_path, flags, options))

        yield begin


@needs_java
@pytest.mark.timeout(4 * DEADLINE_S)
def test_training_survives_a_lost_executor(start: Start, cluster: SparkCluster, tmp_path: Path) -> None:
    """It ends with the weights of a training that nobody disturbed."""
    options = ("--checkpoint-interval", "10")
    job = start(*options, flags=("-np", "2", "--max-restarts", "1", "--backoff", "0"))
    job.await_lines()
    cluster.kill_executor(0)
    done = job.ended(0, 2 * DEADLINE_S)
    assert "hvdtrain launch: restart 1 of 1 in 0 s." in done.stderr, done.tail()
    assert "2 workers by hvdtrain launch on 2 nodes" in done.stdout, done.tail()
    assert "WARN" not in done.output, done.tail()
    result = result_of(job.out)
    assert result["metrics"]["accuracy"] >= 0.97
    assert len(result["goodput"]["restarts"]) == 1
    train = ["train", "--output-dir", "local", "--progress", "none", *options]
    argv = ["python", "-m", "hvdtrain", "launch", "local", "-np", "2", "--", *train]
    local = run_command(argv, DEADLINE_S, cwd=tmp_path, interpreter="warm workers")
    assert local.returncode == 0, local.tail()
    assert result["weights"] == result_of(tmp_path / "local")["weights"]


# Both ranks are in one executor; at the first start, one of them is killed.
RANKS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
place = [int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
seen = os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]
if place[0] == 1 and os.environ["HVDTRAIN_RESTART"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
print(f"start {os.environ['HVDTRAIN_RESTART']}:", place, *seen, flush=True)
while True:
    time.sleep(3600)
"""
RUNNING = {"start 1: [0, 2, 0, 2] 1 5,7", "[1] start 1: [1, 2, 1, 2] 1 5,7"}
ASKED = {"asked to stop", "[1] asked to stop"}


@needs_java
@pytest.mark.timeout(3 * DEADLINE_S)
def test_ranks_of_one_executor(tmp_path: Path, cluster: SparkCluster) -> None:
    """All start again when one is killed, and hear a signal; a killed launcher leaves nothing. Strangers who call the
    process that talks to Spark change nothing."""
    (tmp_path / "ranks.py").write_text(RANKS)
    flags = ["-np", "2", "--slots-per-host", "2", "--gpus-per-worker", "1", "--max-restarts", "1", "--backoff", "0"]
    launcher = [sys.executable, "-m", "hvdtrain", "launch", "spark", "--master", cluster.master]
    variables = {name: text for name, text in environment(cluster.variables).items() if name != "OMP_NUM_THREADS"}
    with Spawned([*launcher, *flags, "--", "ranks.py"], variables, tmp_path) as job:
        job.await_that(lambda: set(job.output.splitlines()) >= RUNNING, "two ranks", DEADLINE_S)
        assert "was killed by SIGKILL" in job.output, job.said.tail()
        _call_as_stranger(job)
        job.process.send_signal(signal.SIGTERM)
        job.await_that(lambda: set(job.output.splitlines()) >= ASKED, "the signal in both ranks", DEADLINE_S)
        job.process.kill()
        job.require_gone(GONE_S)
        cluster.await_empty()


def _call_as_stranger(job: Spawned) -> None:
    (broker,) = (process for process in job.processes() if b"spark.broker" in command_of(process))
    listening = [each.laddr for each in psutil.Process(broker).net_connections() if each.status == "LISTEN"]
    assert listening
    for address in listening:
        with socket.create_connection(tuple(address), DEADLINE_S) as stranger:
            stranger.sendall(b'{"secret": "", "number": 0, "executor": "a:1", "host": "a", "address": ["a", 1]}\n')
            assert stranger.recv(100) == b""


@needs_java
def test_too_few_slots_are_refused(start: Start) -> None:
    done = start(flags=("-np", "2", "--conf", "spark.cores.max=1", "--wait", "40")).ended(2)
    assert "Spark has room for 1 of 2 tasks, after 40 s." in done.stderr, done.tail()
    assert "HINT: use -np 1," in done.stderr, done.tail()


@needs_java
def test_executors_that_cannot_run_the_workers_are_refused(start: Start, tmp_path: Path) -> None:
    """Another module called hvdtrain comes first where executors look."""
    (tmp_path / "node" / "hvdtrain").mkdir(parents=True)
    (tmp_path / "node" / "hvdtrain" / "__init__.py").write_text("raise ImportError('deliberately')\n")
    path = python_path(tmp_path / "node")["PYTHONPATH"]
    done = start(flags=("-np", "1", "--conf", f"spark.executorEnv.PYTHONPATH={path}")).ended(2)
    assert "cannot import hvdtrain: ImportError: deliberately." in done.stderr, done.tail()
    assert done.stderr.count("HINT: ") == 1, done.tail()


@needs_java
def test_a_master_that_is_not_there(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "hvdtrain",
        "launch",
        "spark",
        "-np",
        "1",
        "--master",
        f"spark://127.0.0.1:{free_port()}",
    ]
    done = run_command(argv, DEADLINE_S, python_path(ROOT), tmp_path)
    assert done.returncode == 2, done.tail()
    assert f"There is no Spark cluster at {argv[-1]}: Connection refused." in done.stderr, done.tail()
    assert done.stderr.count("HINT: ") == 1, done.tail()


def test_a_machine_without_java_is_told_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hvdtrain", "launch", "spark", "-np", "1", "--master", "spark://127.0.0.1:7077"]
    done = run_command(argv, DEADLINE_S, {**python_path(ROOT), "JAVA_HOME": str(tmp_path)}, tmp_path)
    assert done.returncode == 2, done.tail()
    assert f"There is no program java in {tmp_path}/bin, where JAVA_HOME points." in done.stderr, done.tail()
    assert done.stderr.count("HINT: ") == 1, done.tail()
