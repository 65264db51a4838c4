"""`hvdtrain launch ray` on a real Ray cluster of two nodes on this machine: it trains, and how jobs end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.jobs import ENDLESS
from support.placed_jobs import DEADLINE_S, GONE_S, ROOT, PlacedJob
from support.process_table import command_of
from support.processes import Spawned, environment, python_path, run_command, wait_until
from support.runs import result_of, topology_of_run
from support.warm.interpreters import warm

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra")

START_S = 120.0
CPUS = 2  # of each node

# In a process of its own, as a cluster is: pytest's own process would get Ray's handlers of signals and its threads.
CLUSTER = """
import json, logging, os, sys
said = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # Ray prints what becomes of its nodes
from ray.cluster_utils import Cluster
node = {"num_cpus": int(sys.argv[1]), "object_store_memory": 100_000_000}
def patient(start, tries=3):  # Ray gives a node 30 s to start, which may be too few on a busy machine
    try:
        return start()
    except Exception:
        if tries == 1:
            raise
        return patient(start, tries - 1)
cluster = patient(lambda: Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False}))
import ray
ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
from ray.util import placement_group_table
nodes = {}
def used(_):
    groups = [table for table in placement_group_table().values() if table["state"] != "REMOVED"]
    return [len(groups), ray.cluster_resources().get("CPU", 0) - ray.available_resources().get("CPU", 0)]
def add(name):
    if name not in nodes:
        nodes[name] = patient(lambda: cluster.add_node(**node, node_ip_address="127.0.0.2"))
def remove(name):
    cluster.remove_node(nodes.pop(name), allow_graceful=False)
print(json.dumps(cluster.address), file=said)
for line in sys.stdin:
    what, name = line.split()
    print(json.dumps({"used": used, "add": add, "remove": remove}[what](name)), file=said)
ray.shutdown()
cluster.shutdown()
"""


class RayCluster:
    """A head, and further nodes of names."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLUSTER, str(CPUS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(), **python_path(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            text=True,
        )
        self.address = str(self._answer())

    def do(self, what: str, node: str = "-") -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {node}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=START_S)

    def await_empty(self) -> None:
        """Until no placement group is left, and nothing is reserved."""
        wait_until("an empty cluster", lambda: self.do("used") == [0, 0], GONE_S, lambda: str(self.do("used")))


@pytest.fixture(scope="module")
def head() -> Iterator[RayCluster]:
    running = RayCluster()
    yield running
    running.close()


@pytest.fixture
def cluster(head: RayCluster) -> Iterator[RayCluster]:
    """With two nodes."""
    head.do("add", "second")
    yield head
    head.await_empty()


class Job(PlacedJob):
    """Of `hvdtrain launch ray`."""

    def __init__(self, cluster: RayCluster, folder: Path, flags: Sequence[str], options: Sequence[str]) -> None:
        super().__init__(["ray", "--address", cluster.address], cluster.await_empty, folder, flags, options)


Start = Callable[..., Job]


def warm_workers() -> tuple[str, str]:
    """A flag by which workers are forks of an interpreter that has imported torch. Without it they are new ones."""
    return ("--python", warm("torch").python)


@pytest.fixture
def start(cluster: RayCluster, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as jobs:
        yield lambda *options, flags=(): jobs.enter_context(Job(cluster, tmp_path, flags, options))


def actor_of(worker: int) -> int:
    """The process of Ray that has started it, by an agent."""
    process = worker
    while not command_of(process).startswith(b"ray::"):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


@pytest.mark.timeout(2 * DEADLINE_S + START_S)
def test_training_on_two_nodes_survives_a_killed_worker_and_a_killed_actor(start: Start) -> None:
    """An actor holds a worker's place: of a node that lives, another one takes it."""
    flags = ("-np", "2", "--placement", "STRICT_SPREAD", "--max-restarts", "2", "--backoff", "0")
    job = start("--checkpoint-interval", "10", "--epochs", "20", flags=flags)
    job.await_lines()
    os.kill(job.workers()[1], signal.SIGKILL)
    job.await_that(lambda: "restart 1 of 2 in 0 s." in job.output and len(job.workers()) == 2, "a restart", DEADLINE_S)
    job.await_lines()
    os.kill(actor_of(job.workers()[1]), signal.SIGKILL)
    done = job.ended(0)
    assert "was killed by SIGKILL" in done.stderr, done.tail()
    assert "hvdtrain launch: restart 2 of 2 in 0 s." in done.stderr, done.tail()
    assert "2 workers by hvdtrain launch on 2 nodes" in done.stdout, done.tail()
    result, topology = result_of(job.out), topology_of_run(job.out)
    assert (topology["size"], topology["num_nodes"]) == (2, 2)
    assert result["metrics"]["accuracy"] >= 0.97
    assert len(result["goodput"]["restarts"]) == 2
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(job.out)], DEADLINE_S)
    assert verified.returncode == 0, verified.tail()


@pytest.mark.timeout(2 * DEADLINE_S + START_S)
def test_fewer_workers_go_on_without_a_killed_node_and_more_when_one_comes(start: Start, cluster: RayCluster) -> None:
    flags = ("-np", "2", "--placement", "SPREAD", "--cpus-per-worker", str(CPUS), *warm_workers())
    job = start(*ENDLESS, "--global-batch-size", "48", flags=(*flags, "--max-restarts", "3", "--min-workers", "1"))
    job.await_lines()
    cluster.do("remove", "second")
    job.await_that(lambda: "1 worker trains on" in job.output, "one worker that trains on", DEADLINE_S)
    job.await_lines()
    cluster.do("add", "second")
    job.await_that(lambda: "2 workers train on" in job.output, "two workers that train on", DEADLINE_S)
    job.process.send_signal(signal.SIGTERM)
    job.ended(75)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_request_to_stop_reaches_the_workers_and_they_save(start: Start) -> None:
    job = start(*ENDLESS, flags=("-np", "2", "--max-restarts", "3", *warm_workers()))
    job.await_lines()
    job.process.send_signal(signal.SIGTERM)
    done = job.ended(75)
    assert (job.out / "checkpoints" / "latest").exists()
    assert "restart" not in done.stderr, done.tail()


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_launcher_leaves_nothing_in_the_cluster(start: Start, cluster: RayCluster) -> None:
    job = start(*ENDLESS, flags=("-np", "2", *warm_workers()))
    job.await_lines()
    job.process.kill()
    job.require_gone(GONE_S)
    cluster.await_empty()


def test_bad_usage_of_the_workers_ends_the_job_with_2(start: Start) -> None:
    done = start("--epochz", "3", flags=("-np", "2", "--max-restarts", "3")).ended(2)
    assert "There is no option --epochz." in done.stderr, done.tail()
    assert "restart" not in done.stderr, done.tail()


def test_too_little_room_is_refused(start: Start) -> None:
    done = start(flags=("-np", "5")).ended(2)
    text = "The Ray cluster has room for 4 workers of 1 CPU each, and the job begins with 5. Nothing was started."
    assert text in done.stderr, done.tail()
    assert "HINT: use -np 4," in done.stderr, done.tail()
    assert not Path("out").exists()


RANKS = """
import os
print(f"rank {os.environ['HOROVOD_RANK']} of {os.environ['HOROVOD_SIZE']}", os.environ["OMP_NUM_THREADS"])
"""


def test_a_job_begins_with_as_many_workers_as_there_is_room_for(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    flags = ["-np", "3", "--cpus-per-worker", "2", "--min-workers", "1", "--max-restarts", "1"]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ray", "--address", cluster.address, *flags, "--", "ranks.py"]
    variables = {name: text for name, text in environment(python_path(ROOT)).items() if name != "OMP_NUM_THREADS"}
    with Spawned(argv, variables, tmp_path) as job:
        done = job.wait(DEADLINE_S)
        assert done.returncode == 0, done.tail()
        assert "hvdtrain launch: begin with 2 workers, of 3 asked for." in done.stderr, done.tail()
        assert done.stdout.splitlines() == ["rank 0 of 2 2", "[1] rank 1 of 2 2"], done.tail()
        job.require_gone(GONE_S)


def test_a_job_that_waits_for_room_says_so_and_can_be_stopped(cluster: RayCluster, tmp_path: Path) -> None:
    says = f"hvdtrain launch: waiting for Ray at {cluster.address}, for at most 900 s ...\n"
    with Job(cluster, tmp_path, ["-np", "9", "--wait", "600"], []) as job:
        job.await_that(lambda: cluster.do("used")[0] == 1, "a placement group", DEADLINE_S)
        job.await_that(lambda: says in job.output, "a word of what it waits for", DEADLINE_S)
        job.process.send_signal(signal.SIGTERM)
        done = job.ended(143, GONE_S)
        assert done.stderr == f"{says}hvdtrain launch: stopped by SIGTERM.\n"


PLACED = ["launch/placed/__init__.py", "launch/placed/seat_agent.py"]
EMPTY = dict.fromkeys(["__init__.py", "launch/__init__.py", *PLACED], "")
UNFIT = {
    "cannot import hvdtrain: ImportError: deliberately.": {"__init__.py": "raise ImportError('deliberately')"},
    "has hvdtrain 9.9, and the launcher hvdtrain ": {**EMPTY, "version.py": "__version__ = '9.9'"},
}


@pytest.mark.parametrize("text", UNFIT)
def test_a_node_that_cannot_run_the_workers_is_refused(text: str, cluster: RayCluster, tmp_path: Path) -> None:
    """Another module called hvdtrain comes first in the runtime environment of the job."""
    for name, lines in UNFIT[text].items():
        path = tmp_path / "node" / "hvdtrain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{lines}\n")
    runtime = {"env_vars": python_path(tmp_path / "node")}
    variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime}), **python_path(ROOT)}
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ray", "-np", "1", "--address", cluster.address]
    done = run_command(argv, DEADLINE_S, variables, tmp_path)
    assert done.returncode == 2, done.tail()
    assert text in done.stderr, done.tail()
    assert done.stderr.count("HINT: ") == 1, done.tail()


def test_an_interpreter_that_cannot_run_the_workers_is_refused(cluster: RayCluster, tmp_path: Path) -> None:
    """Ray's own one could."""
    (python := tmp_path / "python").write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ray", "-np", "1", "--address", cluster.address]
    for path, cause in ((python, "ModuleNotFoundError"), (tmp_path / "none", "FileNotFoundError")):
        options = ["--python", str(path), "--max-restarts", "3", "--", "train", "--output-dir", "out"]
        done = run_command([*argv, *options], DEADLINE_S, python_path(ROOT), tmp_path)
        assert done.returncode == 2, done.tail()
        assert f"cannot import hvdtrain: {cause}" in done.stderr, done.tail()
        assert "--python names another interpreter" in done.stderr, done.tail()


def test_an_address_where_no_cluster_is(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ray", "-np", "1", "--address"]
    for address, text in (
        ("127.0.0.1:9", "There is no Ray cluster at 127.0.0.1:9: "),
        ("nine", "It is auto, local, HOST:PORT"),
    ):
        done = run_command([*argv, address], DEADLINE_S, python_path(ROOT), tmp_path)
        assert done.returncode == 2, done.tail()
        assert text in done.stderr, done.tail()
        assert done.stderr.count("HINT: ") == 1, done.tail()


def test_nothing_imports_ray_or_spark_that_does_not_need_it() -> None:
    """Frameworks do so with some packages that they find; the launchers themselves have processes for it."""
    lines = "import sys; {}; print(not {{'ray', 'pyspark'}}.isdisjoint(sys.modules))"
    launcher = "import hvdtrain.launch.ray.launcher, hvdtrain.launch.spark.launcher, hvdtrain.launch.placed.cluster"
    for imports in (launcher, "import torch", "import keras"):
        finished = run_command([sys.executable, "-c", lines.format(imports)], DEADLINE_S, python_path(ROOT))
        assert finished.stdout.splitlines()[-1] == "False", finished.tail()
