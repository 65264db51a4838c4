"""One container: what the image holds, that it trains, stops in order and tells its health."""

from __future__ import annotations

import json
import time

import pytest
from engine import Engine

from hvdtrain.version import __version__

AS_LITTLE_AS_POSSIBLE = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
LAUNCH = ("hvdtrain", "launch", "local", "-np", "2", "--", "train")


def test_it_holds_what_it_promises_and_nothing_that_it_should_not(engine: Engine, image: str) -> None:
    script = """
        id --user; id --group; echo $HOME; pwd
        for program in gcc g++ cc make cmake; do command -v $program && exit 3; done
        ls /etc/ssh/ssh_host_* 2> /dev/null && exit 4
        for program in hvdtrain horovodrun mpirun prted train tini ssh sshd; do
            PATH=$PATH:/usr/sbin command -v $program > /dev/null || { echo no $program; exit 6; }
        done
        test -w /runs && test -w /data && test -w /workspace && ! test -w /opt/hvdtrain
    """
    run = engine.run(image, "/bin/bash", "-uc", script)
    assert run.stdout.split() == ["1000", "1000", "/home/hvdtrain", "/workspace"]


def test_labels_and_settings(engine: Engine, image: str) -> None:
    (found,) = json.loads(engine.call("image", "inspect", image).stdout)
    config = found["Config"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert (config["User"], config["WorkingDir"]) == ("1000:1000", "/workspace")
    assert set(config["Volumes"]) == {"/data", "/runs"}


def test_docker_run_image_trains_the_default_task(engine: Engine, image: str, runs: str) -> None:
    engine.run(image, flags=("-v", f"{runs}:/runs"), timeout=600)
    result = json.loads(
        engine.run(image, "/bin/sh", "-c", "cat runs/*/result.json", flags=("-v", f"{runs}:/runs")).stdout
    )
    assert (result["status"], result["task"], result["world_size"]) == ("finished", "digits", 2)
    assert result["metrics"]["accuracy"] > 0.9


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("launcher", [LAUNCH, ("mpirun", "--oversubscribe", "-np", "2", "hvdtrain", "train")])
def test_both_frameworks_train_with_as_little_as_possible_allowed(
    engine: Engine, image: str, runs: str, framework: str, launcher: tuple[str, ...]
) -> None:
    flags = (*AS_LITTLE_AS_POSSIBLE, "-v", f"{runs}:/runs")
    words = (*launcher, "--framework", framework, "--max-steps", "5", "--output-dir", "/runs/few")
    engine.run(image, *words, flags=flags)
    result = json.loads(engine.run(image, "cat", "/runs/few/result.json", flags=flags).stdout)
    assert (result["framework"], result["world_size"], result["steps"]) == (framework, 2, 5)


def test_a_stopped_container_leaves_a_checkpoint_and_is_healthy_before(engine: Engine, image: str, runs: str) -> None:
    words = (*LAUNCH, "--epochs", "100000", "--output-dir", "/runs/long")
    flags = (*AS_LITTLE_AS_POSSIBLE, "-v", f"{runs}:/runs")
    with engine.running(image, *words, flags=flags) as name:
        wait_until_it_trains(engine, name, "/runs/long/metrics.jsonl")
        health = engine.call("exec", name, "/usr/local/bin/hvdtrain-health", check=False)
        assert (health.returncode, health.stdout + health.stderr) == (0, "")
        engine.call("stop", "--time", "120", name)
        (state,) = json.loads(engine.call("container", "inspect", name).stdout)
        logs = engine.call("logs", name)
        assert state["State"]["ExitCode"] == 75, (logs.stdout[-2000:], logs.stderr[-2000:])
    engine.run(image, "test", "-e", "/runs/long/checkpoints/latest", flags=flags)


def wait_until_it_trains(engine: Engine, name: str, metrics: str) -> None:
    """Until there is a line of training in the metrics; AssertionError after two minutes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = engine.call("exec", name, "grep", "-c", '"split": "train"', metrics, check=False)
        if found.returncode == 0:
            return
        time.sleep(1)
    raise AssertionError(engine.call("logs", name, check=False).stdout[-4000:])


def test_its_health_is_told_by_a_full_or_forbidden_run_folder(engine: Engine, image: str) -> None:
    small = ("--user", "0:0", "--tmpfs", "/runs:size=16m")
    run = engine.run(image, "/usr/local/bin/hvdtrain-health", flags=small, check=False)
    assert (run.returncode, "too few for a checkpoint" in run.stderr) == (1, True)
    forbidden = ("--tmpfs", "/runs:size=256m,mode=0755")
    run = engine.run(image, "/usr/local/bin/hvdtrain-health", flags=forbidden, check=False)
    assert (run.returncode, "/runs cannot be written" in run.stderr) == (1, True)
