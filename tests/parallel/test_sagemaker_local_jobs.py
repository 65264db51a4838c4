"""Local SageMaker jobs from outside: own scripts on two machines, signals, a killed launcher, checkpoints kept."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.process_table import command_of
from support.processes import Spawned
from support.runs import read_json

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.sagemaker.channels import make_channels
from hvdtrain.launch.sagemaker.failure_file import REASON_CHARACTERS
from hvdtrain.launch.sagemaker.local.mode import run_local
from hvdtrain.launch.sagemaker.spec import TrainingSpec

DEADLINE_S = 90.0
WAITS_FOR_A_SIGNAL = """\
import os, pathlib, signal, sys, time
def stop(number, frame):
    pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "ready").touch()
time.sleep(600)
"""


def launched(folder: Path, *flags: str) -> Spawned:
    """`hvdtrain launch sagemaker --instance-type local`."""
    command = [sys.executable, "-m", "hvdtrain", "launch", "sagemaker", "--instance-type", "local", "--job-name", "j"]
    return Spawned([*command, "--output-path", str(folder / "runs"), *flags], os.environ)


def test_a_plain_horovod_script_on_two_machines_is_one_job(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "import horovod.torch as hvd\n"
        "hvd.init()\n"
        "total = int(hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum))\n"
        "told = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size(), total)\n"
        "Path(os.environ['SM_OUTPUT_DATA_DIR'], f'rank_{hvd.rank()}').write_text(repr(told))\n"
        "sys.exit(3 if total == 99 else 0)\n"
    )
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"), instance_count=2, hyperparameters={"epochs": 1})
    run_local(spec, [], tmp_path / "jobs" / "1")
    told = [
        (tmp_path / "jobs" / "1" / f"algo-{rank + 1}" / "output" / "data" / f"rank_{rank}").read_text()
        for rank in range(2)
    ]
    assert told == ["(0, 2, 0, 1, 2, 3)", "(1, 2, 0, 1, 2, 3)"]


def test_how_a_script_on_two_machines_ends_is_seen_through_its_start(tmp_path: Path) -> None:
    """Rank 0 runs beside the store that it serves, rank 1 instead of its start."""
    (tmp_path / "own.py").write_text(
        "import os, time\nif os.environ['HOROVOD_RANK'] == '1':\n    time.sleep(600)\nraise ValueError('of rank 0')\n"
    )
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"), instance_count=2, max_run_s=60)
    with pytest.raises(HvdtrainError, match=r"failed on algo-1 .*\n?.*ValueError: of rank 0") as caught:
        run_local(spec, [], tmp_path / "jobs" / "1")
    assert caught.value.conflict.startswith("Rank 0 of 2 on algo-1 failed with exit code 1.")
    assert "another machine has failed" in (tmp_path / "jobs" / "1" / "algo-2" / "output" / "failure").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_workers_time_to_save(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WAITS_FOR_A_SIGNAL)
    data = tmp_path / "runs" / "j" / "algo-1" / "output" / "data"
    with launched(tmp_path, "--entry-point", str(tmp_path / "own.py"), "--", "train") as job:
        job.await_that((data / "ready").exists, "worker", DEADLINE_S)
        job.process.send_signal(number)
        finished = job.wait(DEADLINE_S)
    assert finished.returncode == 75, finished.tail()
    assert (data / "saved").exists()
    assert f"The training job was stopped by {number.name}." in finished.output


def test_a_killed_launcher_leaves_no_simulator_of_pipes(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WAITS_FOR_A_SIGNAL)
    (tmp_path / "records").write_bytes(b"x")
    ready = tmp_path / "runs" / "j" / "algo-1" / "output" / "data" / "ready"
    flags = ["--input-mode", "Pipe", "--channel", f"train-0={tmp_path / 'records'}"]
    with launched(tmp_path, "--entry-point", str(tmp_path / "own.py"), *flags, "--", "train") as job:
        job.await_that(ready.exists, "worker", DEADLINE_S)
        job.await_that(
            lambda: any(b"pipe-sim" in command_of(process) for process in job.processes()), "simulator", DEADLINE_S
        )
        job.process.kill()
        job.require_gone(DEADLINE_S)


def test_jobs_with_one_checkpoint_location_share_its_folder(tmp_path: Path) -> None:
    """And what is there afterwards is what the next job finds in /opt/ml/checkpoints."""
    (tmp_path / "own.py").write_text(
        "import os, pathlib\n"
        "kept = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'checkpoints', 'count')\n"
        "before = int(kept.read_text()) if kept.exists() else 0\n"
        "kept.write_text(str(before + 1))\n"
    )
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"), checkpoint_s3_uri="s3://bucket/a/../kept/")
    for number in range(2):
        run_local(spec, [], tmp_path / "jobs" / str(number))
    assert (tmp_path / "jobs" / "checkpoints" / "bucket" / "a" / "kept" / "count").read_text() == "2"


def test_a_job_out_of_time_before_its_first_step_claims_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WAITS_FOR_A_SIGNAL)
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"), max_run_s=2)
    with pytest.raises(HvdtrainError, match="has not ended within its max_run_s"):
        run_local(spec, [], tmp_path / "jobs" / "1")
    failure = (tmp_path / "jobs" / "1" / "algo-1" / "output" / "failure").read_text()
    assert "left with a checkpoint" not in failure
    assert "exit code 75" in failure


def test_the_cause_is_shown_whatever_came_after_it(tmp_path: Path) -> None:
    """A traceback longer than what is kept of the output, noise after it, and a HINT that is not ours."""
    (tmp_path / "own.py").write_text(
        "import atexit, sys\n"
        "def deep(n):\n"
        "    return deep(n - 1) if n % 2 else other(n - 1)\n"
        "def other(n):\n"
        "    if n <= 0:\n"
        "        raise ValueError('the true cause. HINT: not one of ours')\n"
        "    return deep(n - 1)\n"
        "def noise():\n"
        "    for n in range(3000):\n"
        "        print('noise', n, file=sys.stderr)\n"
        "atexit.register(noise)\n"
        "deep(80)\n"
    )
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"))
    with pytest.raises(HvdtrainError):
        run_local(spec, [], tmp_path / "jobs" / "1")
    shown = (tmp_path / "jobs" / "1" / "algo-1" / "output" / "failure").read_text()[:REASON_CHARACTERS]
    assert shown.splitlines()[1] == "ValueError: the true cause. HINT: not one of ours"
    assert "raise ValueError" in shown


def test_a_script_finds_the_variables_of_the_toolkit(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import json, os, pathlib\n"
        "told = {name: value for name, value in os.environ.items() if name.startswith('SM_')}\n"
        "pathlib.Path(os.environ['SM_OUTPUT_DATA_DIR'], 'told').write_text(json.dumps(told))\n"
    )
    spec = TrainingSpec(entry_point=str(tmp_path / "own.py"), hyperparameters={"lr": 0.1, "amp": True})
    (tmp_path / "data").mkdir()
    folder = run_local(spec, make_channels(spec, str(tmp_path / "data"), "", tmp_path), tmp_path / "jobs" / "1")
    told = read_json(folder / "output" / "data" / "told")
    assert json.loads(told["SM_USER_ARGS"]) == ["--amp", "True", "--lr", "0.1"]
    assert (told["SM_USER_ENTRY_POINT"], told["SM_MODULE_NAME"]) == ("own.py", "own")
    assert int(told["SM_NUM_CPUS"]) == len(os.sched_getaffinity(0))
    assert told["SM_NUM_GPUS"].isdigit()
    assert json.loads(told["SM_RESOURCE_CONFIG"])["current_instance_type"] == "local"
    assert json.loads(told["SM_INPUT_DATA_CONFIG"])["train"]["TrainingInputMode"] == "File"
    everything = json.loads(told["SM_TRAINING_ENV"])
    assert everything["channel_input_dirs"] == {"train": told["SM_CHANNEL_TRAIN"]}
    assert (everything["is_master"], everything["hyperparameters"]) == (True, {"amp": True, "lr": 0.1})


def test_a_job_that_stops_by_itself_and_can_go_on_says_so(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys\nsys.exit(75)\n")
    with pytest.raises(HvdtrainError, match="The training job stopped on algo-1 with exit code 75") as caught:
        run_local(TrainingSpec(entry_point=str(tmp_path / "own.py")), [], tmp_path / "jobs" / "1")
    assert caught.value.exit_code == 75
