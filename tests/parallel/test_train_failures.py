"""What goes wrong on one rank ends all of them soon, and the culprit is the first to be heard.

Every task here is a user's own (workers/train_*_tasks.py), found through the module path.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import python_path
from support.ranks import run_ranks
from support.runs import result_of

import hvdtrain

WORKERS = Path(__file__).parent / "workers"
SLOW_S = 18.0
END_S = 45.0  # from the failure on one rank to the end of every process; five on a quiet machine
# What ranks other than the failing one say: ours, Horovod's own log, the exception it raises.
OTHERS = re.compile(r"stopped: A collective|HorovodInternalError|horovod/common/operations\.cc")


def run_faulty(
    folder: Path,
    launcher: str,
    *flags: str,
    framework: str = "torch",
    size: int = 2,
    interpreter: str = "warm",
    **fault: Any,
) -> tuple[Any, float]:
    """The finished run, and the seconds from the fault to the end of the last process."""
    stamp = folder / "stamp"
    env = {
        **python_path(WORKERS),
        "TRAIN_FAULT": json.dumps({"rank": 1, "call": 1, "stamp": str(stamp), **fault}),
    }
    module = {"torch": "train_torch_tasks", "tensorflow": "train_keras_tasks"}[framework]
    command = ["python", "-m", "hvdtrain", "--task", f"{module}:Faulty", "--output-dir", str(folder / "out"), *flags]
    finished = run_ranks(command, size, launcher, 240, env, folder, interpreter)
    elapsed = time.monotonic() - float(stamp.read_text())
    assert not (folder / "out" / "result.json").exists()
    return finished, elapsed


def assert_heard_first(finished: Any, text: str) -> None:
    """`text` stands in stderr before anything that another rank says."""
    place = finished.stderr.find(text)
    assert place >= 0, finished.tail()
    other = OTHERS.search(finished.stderr)
    assert other is None or place < other.start(), finished.tail()


OWN_FRAME = re.compile(r"in _act(  \*)?\n")  # the star is TensorFlow's, of a graph
OUR_FRAME = re.compile(rf'File "{re.escape(hvdtrain.__path__[0])}/')


def assert_only_own_frames(finished: Any) -> None:
    """The traceback holds the task's lines and none of ours or of the frameworks, which would bury them."""
    assert OWN_FRAME.search(finished.stderr), finished.tail()
    text = finished.stderr.partition("in user code:")[0]  # where TensorFlow tells what led to it, we are in that
    assert not OUR_FRAME.search(text), finished.tail()
    assert "__autograph_generated_file" not in text, finished.tail()


MPIRUN_RAISES = [("import", 1, 1), ("open_data", 1, 1), ("build_model", 1, 1), ("decode", 3, 1), ("measure", 4, 0)]
GLOO_RAISES = [("import", 1, 1), ("open_data", 1, 0), ("decode", 3, 1), ("measure", 4, 1)]
RAISES = [
    *(("mpirun", "torch", *case) for case in MPIRUN_RAISES),
    *(("horovodrun-gloo", "torch", *case) for case in GLOO_RAISES),
    ("horovodrun", "torch", "decode", 3, 1),
    ("horovodrun-gloo", "tensorflow", "decode", 3, 0),
    ("mpirun", "tensorflow", "measure", 2, 1),  # while the graph is traced
]


@pytest.mark.parametrize(("launcher", "framework", "place", "call", "rank"), RAISES)
def test_exception_on_one_rank(launcher: str, framework: str, place: str, call: int, rank: int, tmp_path: Path) -> None:
    fault: dict[str, Any] = {"place": place, "kind": "raise", "call": call, "rank": rank}
    interpreter = "fresh" if (launcher, place) == ("mpirun", "import") else "warm"
    finished, elapsed = run_faulty(tmp_path, launcher, framework=framework, interpreter=interpreter, **fault)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    first = finished.stderr.find("Traceback (most recent call last)")
    assert f"rank {rank} on " in finished.stderr[:first], finished.tail()
    assert_heard_first(finished, f"RuntimeError: deliberate failure in {place}")
    assert_only_own_frames(finished)
    log = tmp_path / "out" / "logs" / f"rank_{rank}.log"
    assert not log.exists() or OUR_FRAME.search(log.read_text())
    assert log.exists() or place in ("import", "open_data", "build_model")


@pytest.mark.parametrize(
    ("launcher", "place"), [("mpirun", "measure"), ("horovodrun-gloo", "measure"), ("horovodrun-gloo", "build_model")]
)
def test_exception_on_all_ranks_is_told_once(launcher: str, place: str, tmp_path: Path) -> None:
    finished, _ = run_faulty(tmp_path, launcher, place=place, kind="raise", rank="all")
    assert finished.returncode != 0, finished.tail()
    # Where the launcher is slow to end the others (a loaded machine), they tell theirs in the end; none is ever lost.
    told = re.findall(r"rank (\d) on \S+ failed.*\n.*Traceback", finished.stderr)
    assert told[:1] == ["0"], finished.tail()
    assert len(told) == 1 or launcher == "horovodrun-gloo", finished.tail()
    assert len(OWN_FRAME.findall(finished.stderr)) == len(told), finished.tail()
    assert_only_own_frames(finished)
    assert place == "build_model" or OUR_FRAME.search((tmp_path / "out" / "logs" / "rank_0.log").read_text())


@pytest.mark.parametrize(
    ("launcher", "framework", "place", "call"),
    [
        ("mpirun", "torch", "measure", 4),
        ("mpirun", "torch", "import", 1),
        ("horovodrun", "torch", "measure", 4),
        ("horovodrun-gloo", "torch", "decode", 3),
    ],
)
def test_exit_with_code_0_on_one_rank(launcher: str, framework: str, place: str, call: int, tmp_path: Path) -> None:
    """The launcher would take it for success."""
    finished, elapsed = run_faulty(tmp_path, launcher, framework=framework, place=place, kind="exit", call=call)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    assert_heard_first(finished, "RuntimeError: the task called sys.exit(0) before training was done")


@pytest.mark.parametrize(
    ("launcher", "framework", "place", "kind", "interpreter"),
    [
        ("mpirun", "torch", "decode", "kill", "fresh"),
        ("mpirun", "torch", "measure", "segv", "warm"),
        ("horovodrun", "torch", "build_model", "kill", "warm"),
        ("horovodrun-gloo", "torch", "measure", "segv", "fresh"),
        ("horovodrun-gloo", "tensorflow", "decode", "kill", "warm"),
    ],
)
def test_signal_that_ends_one_rank(
    launcher: str, framework: str, place: str, kind: str, interpreter: str, tmp_path: Path
) -> None:
    """Nobody is left to explain it, so the launcher's words must name rank and signal."""
    call = 1 if place == "build_model" else 3
    finished, elapsed = run_faulty(
        tmp_path, launcher, framework=framework, interpreter=interpreter, place=place, kind=kind, call=call
    )
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    signal = {"kill": 9, "segv": 11}[kind]
    gloo, mpi = rf"Process 1 exit with status code {128 + signal}", rf"rank 1 with .*\s.*signal {signal}"
    assert re.search(gloo if "gloo" in launcher else mpi, finished.stdout + finished.stderr), finished.tail()
    assert kind == "kill" or "in measure" in finished.stderr, finished.tail()  # where it crashed


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_data_that_never_come_on_one_rank(launcher: str, tmp_path: Path) -> None:
    fault: dict[str, Any] = {"place": "decode", "kind": "hang", "call": 3}
    finished, elapsed = run_faulty(tmp_path, launcher, "--data.timeout", "8", "--watchdog", "3", **fault)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < 8 + END_S, finished.tail()
    assert_heard_first(finished, "Batch 2 was not ready after 8 seconds.")
    assert re.search(r"rank 1 on \S+: Batch 2 was not ready", finished.stderr), finished.tail()
    assert_explained(finished, tmp_path, r"Rank 1 on \S+ has been in data loading for step \d for \d+ s, decoding\.")


def assert_explained(finished: Any, folder: Path, *sentences: str, stacks: str = "rank_0.stacks.txt") -> None:
    """The watchdog has said so once, and has saved it, with the stacks of the ranks that could."""
    (stall,) = (folder / "out" / "stalls").iterdir()
    for sentence in sentences:
        assert len(re.findall(sentence, finished.stderr)) == 1, finished.tail()
        assert re.search(sentence, (stall / "explanation.txt").read_text())
    assert "run_epoch" in (stall / stacks).read_text()


BLOCKED = (
    r"Rank 1 on \S+ has been in training step 4 for \d+ s, and uses no CPU: it is blocked\.",
    r"Rank 0 has waited \d+ s in hvdtrain\.gradients\.0 of step 4, for the others\.",
)


@pytest.mark.parametrize(
    ("detail", "stacks"), [("ranks", "rank_0.stacks.txt"), ("summary", "host_of_rank_0.stacks.txt")]
)
def test_a_stall_may_end_the_job_at_once(detail: str, stacks: str, tmp_path: Path) -> None:
    fault: dict[str, Any] = {"place": "measure", "kind": "hang", "call": 4}
    flags = ["--watchdog", "3", "--watchdog-action", "end", "--metrics-detail", detail]
    finished, elapsed = run_faulty(tmp_path, "horovodrun-gloo", *flags, **fault)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    assert_explained(finished, tmp_path, *BLOCKED, stacks=stacks)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_rank_that_never_joins_a_collective(launcher: str, tmp_path: Path) -> None:
    """Horovod looks for stalls every half of the limit, and again before it acts."""
    fault: dict[str, Any] = {"place": "measure", "kind": "hang", "call": 4}
    flags = ["--stall-timeout", "8", "--watchdog", "3"]
    finished, elapsed = run_faulty(tmp_path, launcher, *flags, **fault)
    assert_explained(finished, tmp_path, *BLOCKED)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < 2 * 8 + END_S, finished.tail()
    assert re.search(r"1!: \[allreduce.hvdtrain.gradients.0\]", finished.stdout + finished.stderr), finished.tail()
    assert "rank 0 on" in finished.stderr, finished.tail()
    assert "Another rank has ended or stalled" in finished.stderr, finished.tail()


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "torch"), ("horovodrun-gloo", "tensorflow")])
def test_rank_that_is_frozen_as_a_whole(launcher: str, framework: str, tmp_path: Path) -> None:
    """Horovod's own check hangs with it. Half a minute more than --stall-timeout is granted, or thrice that."""
    fault: dict[str, Any] = {"place": "decode", "kind": "freeze", "call": 3}
    interpreter = "fresh" if framework == "torch" else "warm"
    flags = ["--stall-timeout", "8", "--watchdog", "6"]  # longer than TensorFlow traces on a machine with much to do
    finished, elapsed = run_faulty(tmp_path, launcher, *flags, framework=framework, interpreter=interpreter, **fault)
    assert_explained(finished, tmp_path, r"Rank 1 has reported nothing: it is frozen or gone")
    assert finished.returncode != 0, finished.tail()
    assert elapsed < 38 + END_S, finished.tail()
    heard = "A collective has waited for other ranks for 38 s."
    assert heard in finished.stderr or "Another rank has ended or stalled" in finished.stderr, finished.tail()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_a_stage_that_is_frozen(launcher: str, tmp_path: Path) -> None:
    """The stage before it waits for its gradients: the message has a limit, and the watchdog names the rank."""
    fault: dict[str, Any] = {"place": "decode", "kind": "freeze", "call": 3}
    flags = ["--parallel.stages", "2", "--stall-timeout", "8", "--watchdog", "3"]
    finished, elapsed = run_faulty(tmp_path, launcher, *flags, interpreter="fresh", **fault)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < 38 + END_S, finished.tail()
    assert_explained(finished, tmp_path, r"Rank 1 has reported nothing: it is frozen or gone")
    named = re.search(r"Rank 0 has waited 8 s for \w+ of rank 1\.", finished.stderr) is not None
    assert named is (launcher == "mpirun"), finished.tail()  # process sets have Horovod's deadline, which names no rank


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_rank_that_is_lost_while_weights_are_averaged_for_a_checkpoint(framework: str, tmp_path: Path) -> None:
    """Local SGD, where no step has made them equal before. The other rank says why it ends, and nothing else.

    Not under mpirun, which may kill it before it has said anything.
    """
    flags = ["--sync-every", "100", "--checkpoint-interval", "2", "--warmup-epochs", "0"]
    fault: dict[str, Any] = {"place": "average", "kind": "kill"}
    finished, elapsed = run_faulty(tmp_path, "horovodrun-gloo", *flags, framework=framework, **fault)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    assert "Traceback" not in finished.stderr.partition("Another rank has ended or stalled")[0], finished.tail()
    assert "rank 0 on" in finished.stderr, finished.tail()


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "tensorflow"), ("horovodrun-gloo", "torch")])
def test_slow_data_and_a_slow_disk_are_no_stall(launcher: str, framework: str, tmp_path: Path) -> None:
    """One rank is late with its data, and rank 0 with its checkpoint and its report, each beyond --stall-timeout."""
    env = {
        **python_path(WORKERS),
        "TRAIN_SLOW": json.dumps({"open_data": [1, SLOW_S], "disk": [0, SLOW_S], "report": [0, SLOW_S / 2]}),
    }
    task = {"torch": "train_torch_tasks:Faulty", "tensorflow": "train_keras_tasks:Faulty"}[framework]
    # On a loaded machine one rank may trace its graph some seconds longer than another: that alone must not be a stall.
    flags = ["--stall-timeout", "6", "--max-steps", "2", "--output-dir", str(tmp_path / "out"), "--watchdog", "3"]
    flags += ["--report", "always"]
    command = ["python", "-m", "hvdtrain", "--task", task, *flags]
    finished = run_ranks(command, 2, launcher, 240, env=env, cwd=tmp_path)
    assert finished.returncode in (0, 75), finished.tail()
    assert result_of(tmp_path / "out")["steps"] == 2
    assert re.search(r"Rank 0 on \S+ has been saving the checkpoint of step 2 for", finished.stderr), finished.tail()


@pytest.mark.parametrize(("launcher", "rank"), [("mpirun", 1), ("horovodrun-gloo", 0)])
def test_loss_that_is_not_a_number_on_one_rank(launcher: str, rank: int, tmp_path: Path) -> None:
    """All ranks see the reduced loss and leave together, with one message. The 40th batch is training step 32."""
    fault: dict[str, Any] = {"place": "loss", "kind": "nan", "call": 40, "rank": rank}
    finished, elapsed = run_faulty(tmp_path, launcher, **fault)
    assert finished.returncode == 1, finished.tail()
    assert elapsed < END_S, finished.tail()
    assert finished.stderr.count("The training loss is nan at step ") == 1, finished.tail()
    assert finished.stderr.count("HINT: ") == 1, finished.tail()
    assert "Traceback" not in finished.stderr.partition("HINT")[0], finished.tail()
    assert "stopped:" not in finished.stderr, finished.tail()
    checkpoints = [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()]
    assert sorted(checkpoints) == ["best", "latest", "step_00000030"]  # of the first epoch, which was sound
