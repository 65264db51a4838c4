"""What a container tells of its failure: the cause, wherever it stood in the output, and whose it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import ERR
from hvdtrain.launch.sagemaker.container.program import WorkerCommand
from hvdtrain.launch.sagemaker.failure_file import REASON_CHARACTERS, OutputParser, cause_of
from hvdtrain.launch.sagemaker.train_entry import ELSEWHERE, ContainerExit, _container_exit
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.topology.topology import RankAssignment

TRAIN = Path(__file__).parents[4] / "hvdtrain" / "launch" / "sagemaker" / "train.sh"
HEADER = "Traceback (most recent call last):"


def heard(*pieces: bytes) -> OutputParser:
    """A worker's output on standard error."""
    output = OutputParser()
    for piece in pieces:
        output.tail.add(ERR, piece)
    return output


def ending(
    outcome: JobOutcome,
    run_folder: Path | None,
    hosts: int = 1,
    failure: FailureRecord | None = None,
    said: bytes = b"",
) -> ContainerExit:
    worker = WorkerState(0, "algo-1", end=WorkerExit(failure.exit_code if failure else 75, failure=failure))
    command = WorkerCommand(("x",), Path(), run_folder)
    return _container_exit(
        outcome, [worker], [RankAssignment(0, hosts, 0, 1, 0, hosts, "algo-1")], [heard(said)], command
    )


def test_the_end_of_a_traceback_that_is_longer_than_any_memory() -> None:
    frames = [line for n in range(500) for line in (f'  File "a.py", line {n}, in f', "    f()")]
    noise = [f"noise {n}" for n in range(3000)]
    told = cause_of("\n".join([HEADER, *frames, "ValueError: the cause", *noise]))
    assert told.startswith("ValueError: the cause\n")
    assert "line 499, in f" in told[:REASON_CHARACTERS]
    assert "line 0," not in told


def test_an_exception_after_ten_thousand_frames_and_a_form_feed_in_one() -> None:
    """Python's limit of frames can be raised; and `str.splitlines` would take the form feed for the end of a line."""
    frames = "".join(f'  File "a.py", line {n}, in f\n    x = "\f"\n' for n in range(10_000))
    output = heard(f"{HEADER}\n{frames}RecursionError: too deep\n".encode())
    assert output.cause.startswith("RecursionError: too deep\n")
    assert 'line 9999, in f\n    x = "\f"' in output.cause


def test_what_is_written_after_an_exception_does_not_replace_it() -> None:
    lines = [HEADER, '  File "a.py", line 1, in f', "ValueError: no x", "HINT: ask Bob", "and more", "HINT: nothing"]
    assert cause_of("\n".join(lines)).startswith("ValueError: no x\nHINT: ask Bob")
    assert cause_of("HINT: log in as guest\ndone") == ""


def test_each_exception_of_a_group_and_a_traceback_that_was_cut() -> None:
    group = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 1, in <module>',
        "  | ExceptionGroup: two (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        f"    | {HEADER}",
        '    |   File "a.py", line 2, in f',
        "    | KeyError: 'k'",
        "    +------------------------------------",
    ]
    assert cause_of("\n".join(group)).startswith("KeyError: 'k'")
    assert cause_of(f'{HEADER}\n  File "a.py", line 1, in f').endswith('File "a.py", line 1, in f')


def test_lines_come_in_pieces_and_the_last_one_unfinished() -> None:
    assert heard(b"Trace", b"back (most recent call last):\n  File", b" x\nValueE", b"rror: y").cause == (
        "ValueError: y\nThe end of its traceback:\n  File x"
    )


def test_only_a_checkpoint_that_is_there_is_told_of(tmp_path: Path) -> None:
    assert "there is no checkpoint" in ending(JobOutcome(75), tmp_path).cause
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text("step_00000012\n")
    told = ending(JobOutcome(75), tmp_path).cause
    assert "the newest checkpoint is step_00000012.\nHINT: a job with a checkpoint location" in told
    assert "exit code 75" in ending(JobOutcome(75), None).cause


def test_another_machines_failure_is_told_as_such(tmp_path: Path) -> None:
    stopped = JobOutcome(143, message="hvdtrain launch: stopped by SIGTERM.")
    alone, several = ending(stopped, tmp_path), ending(stopped, tmp_path, hosts=2)
    assert (alone.cause, alone.by_itself) == (stopped.message, True)
    assert (several.cause.splitlines()[0], several.by_itself) == (stopped.message, False)
    assert "another machine has failed" in several.cause
    lost = FailureRecord("lost_rank", 0, "algo-1", "A collective operation was aborted.", 1)
    told = ending(JobOutcome(1, 0, "message"), tmp_path, 2, lost)
    assert told.cause.startswith(ELSEWHERE)
    assert not told.by_itself
    alone = ending(JobOutcome(1, 0, "message"), tmp_path, 1, lost)
    assert alone.cause == "Rank 0 of 1 on algo-1 failed with exit code 1.\nmessage"


def test_the_cause_is_what_the_worker_has_recorded(tmp_path: Path) -> None:
    error = FailureRecord("error", 0, "algo-1", "The loss is nan.\nHINT: lower the learning rate.", 1)
    heading = "Rank 0 of 1 on algo-1 failed with exit code 1."
    assert ending(JobOutcome(1, 0), tmp_path, 1, error).cause == f"{heading}\n{error.cause}"
    shown = "rank 0 failed:\nTraceback (most recent call last):\n  in f\nValueError: x"
    raised = FailureRecord("exception", 0, "algo-1", "ValueError: x", 1, shown)
    told = ending(JobOutcome(1, 0), tmp_path, 1, raised).cause
    assert told == f"{heading}\nValueError: x\nThe end of its traceback:\n  in f"
    printed = FailureRecord("exception", 0, "algo-1", "ValueError: x", 1)  # rank 0 prints its traceback itself
    assert ending(JobOutcome(1, 0), tmp_path, 1, printed, shown.encode()).cause == told
    assert ending(JobOutcome(1, 0), tmp_path, 1, printed).cause == f"{heading}\nValueError: x"


def test_an_image_without_python_says_so_in_the_failure_file(tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "PYTHON": "no-such-python", "SAGEMAKER_BASE_DIR": str(tmp_path)}
    finished = subprocess.run(["/bin/sh", str(TRAIN)], env=environment, capture_output=True, text=True, timeout=60)
    told = (tmp_path / "output" / "failure").read_text()
    assert finished.returncode == 2
    assert told.startswith("There is no no-such-python in this image.")
    assert "HINT: " in told
    assert told in finished.stderr
