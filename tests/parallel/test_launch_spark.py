"""`hvdtrain launch spark` on a real Spark cluster of two workers on this machine: it trains, and how jobs end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.placed_jobs import DEADLINE_S, ENDLESS, GONE_S, ROOT, PlacedJob
from support.processes import Spawned, environment, free_port, python_path, run_command
from support.runs import result_of, topology_of_run
from support.spark_cluster import SparkCluster

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
pytestmark = pytest.mark.skipif(not HAS_SPARK, reason="PySpark is an extra")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, a package of the system")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    running = SparkCluster(tmp_path_factory.mktemp("spark"), ROOT)
    yield running
    running.close()


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
def test_training_survives_a_killed_worker_and_a_lost_executor(
    start: Start, cluster: SparkCluster, tmp_path: Path
) -> None:
    """It ends with the weights of a training that nobody disturbed."""
    options = ("--epochs", "20", "--checkpoint-interval", "10")
    job = start(*options, flags=("-np", "2", "--max-restarts", "2", "--backoff", "0"))
    job.await_lines()
    os.kill(job.workers()[1], signal.SIGKILL)
    job.await_that(lambda: "restart 1 of 2" in job.output, "a restart", DEADLINE_S)
    job.await_lines()
    cluster.kill_executor(0)
    done = job.ended(0)
    assert "was killed by SIGKILL" in done.stderr, done.tail()
    assert "hvdtrain launch: restart 2 of 2 in 0 s." in done.stderr, done.tail()
    assert "2 workers by hvdtrain launch on 2 nodes" in done.stdout, done.tail()
    assert "WARN" not in done.output, done.tail()
    result = result_of(job.out)
    assert result["metrics"]["accuracy"] >= 0.97
    train = ["train", "--output-dir", "local", "--progress", "none", *options]
    argv = ["python", "-m", "hvdtrain", "launch", "local", "-np", "2", "--", *train]
    local = run_command(argv, DEADLINE_S, cwd=tmp_path)
    assert local.returncode == 0, local.tail()
    assert result["weights"] == result_of(tmp_path / "local")["weights"]


@needs_java
@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_request_to_stop_reaches_the_workers_and_they_save(start: Start) -> None:
    """Both are in one executor."""
    job = start(*ENDLESS, flags=("-np", "2", "--slots-per-host", "2", "--max-restarts", "3"))
    job.await_lines()
    job.process.send_signal(signal.SIGTERM)
    done = job.ended(75)
    assert (job.out / "checkpoints" / "latest").exists()
    assert topology_of_run(job.out)["num_nodes"] == 1
    assert "restart" not in done.stderr, done.tail()


RANKS = """
import os, time
print(*(os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK")), os.environ["OMP_NUM_THREADS"])
time.sleep(3600)
"""


@needs_java
@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_launcher_leaves_nothing_in_the_cluster(cluster: SparkCluster, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    flags = ["-np", "1", "--cpus-per-worker", "2", "--master", cluster.master]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "spark", *flags, "--", "ranks.py"]
    variables = {name: text for name, text in environment(cluster.variables).items() if name != "OMP_NUM_THREADS"}
    with Spawned(argv, variables, tmp_path) as job:
        job.await_that(lambda: "0 1 0 2" in job.output, "a worker with two threads", DEADLINE_S)
        job.process.kill()
        job.require_gone(GONE_S)
        cluster.await_empty()


@needs_java
def test_too_few_slots_are_refused(start: Start) -> None:
    done = start(flags=("-np", "2", "--conf", "spark.cores.max=1", "--wait", "20")).ended(2)
    assert "Spark has room for 1 of 2 tasks, after 20 s." in done.stderr, done.tail()
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
