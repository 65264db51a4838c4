"""`hvdtrain.run(function, np=2)`: results of all ranks, and what goes wrong as an exception of the calling process."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes import Spawned, environment

from hvdtrain.stop_requests import ECHO_SECONDS

SCRIPT = str(Path(__file__).parent / "workers" / "run_calls.py")
DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each call; nothing of them is left, neither a process nor a file."""
    folder = tmp_path_factory.mktemp("calls")
    variables = environment() | {"HVDTRAIN_EXIT_TIMEOUT": "5"}
    with Spawned([sys.executable, SCRIPT, "all", str(folder)], variables, folder) as spawned:
        done = spawned.wait(DEADLINE_S)
        spawned.require_gone()
    assert done.returncode == 0, done.tail()
    assert list(folder.iterdir()) == []
    for text in ("nothing is here", "This is a fact", "was killed by", "cannot be pickled", "cannot be started"):
        assert text not in done.stderr, done.stderr  # the exceptions say it, and nobody else
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_results_come_in_the_order_of_ranks(told: dict[str, Any]) -> None:
    assert told["sums"] == [[0, 18.0], [1, 18.0]]


def test_a_thread_that_a_function_leaves_does_not_keep_its_result(told: dict[str, Any]) -> None:
    """HVDTRAIN_EXIT_TIMEOUT, which is half an hour otherwise, ends such a worker."""
    assert told["thread"] == ["done"]


def test_agents_of_ssh_call_a_closure(told: dict[str, Any]) -> None:
    assert told["by_agents"] == [40, 41]


def test_an_exception_of_a_rank_is_raised_here_with_its_traceback(told: dict[str, Any]) -> None:
    error = told["fails"]
    assert error["kind"] == "HvdtrainError"
    assert error["text"].startswith("fails_on_one() raised an exception on rank 1 of 2, on "), error
    assert ": LookupError: nothing is here. The other workers were ended" in error["text"], error
    assert 'raise LookupError("nothing is here")' in error["notes"], error
    assert error["cause"] == "LookupError('nothing is here')"


def test_an_error_of_hvdtrain_keeps_its_class_and_sentences(told: dict[str, Any]) -> None:
    error = told["refuses"]
    assert (error["kind"], error["text"]) == ("UsageError", "This is a fact. This is a conflict.\nHINT: this helps.")
    assert error["notes"].startswith("Raised by refuses() on rank 0 of 1, on "), error


def test_the_last_lines_of_a_killed_worker_are_the_note(told: dict[str, Any]) -> None:
    assert told["killed"]["notes"].startswith("hvdtrain launch: rank 0 of 1 was killed by SIGKILL. "), told["killed"]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        ("generator", "UsageError", "The result of <lambda>() on rank 0, of type generator, cannot be pickled: "),
        ("killed", "HvdtrainError", "rank 0 of 1 was killed by SIGKILL"),
        ("exits", "HvdtrainError", "<lambda>() raised an exception on rank 0 of 1, on "),
        ("lock", "UsageError", "The function _getframe cannot be pickled: TypeError: "),
        ("slots", "UsageError", "The job has 3 workers. Its hosts have 2 slots: localhost:2."),
        ("elsewhere", "UsageError", "No folder can be made in "),
        ("np", "UsageError", "np is 0. A job has one worker or more."),
        ("use_mpi", "UsageError", "hvdtrain.run() was given use_mpi=True. Workers meet by Gloo here."),
        ("executable", "UsageError", "/no cannot be started: No such file or directory."),
    ],
)
def test_what_goes_wrong_is_said(call: str, kind: str, text: str, told: dict[str, Any]) -> None:
    error = told[call]
    assert error["kind"] == kind, error
    assert error["text"].startswith(text), error
    assert "\nHINT: " in error["text"], error


@contextmanager
def deaf_workers(folder: Path) -> Iterator[Spawned]:
    """A script with two workers that no first interrupt ends."""
    with Spawned([sys.executable, SCRIPT, "deaf", str(folder)], environment(), folder) as call:
        call.await_that(lambda: len(list(folder.iterdir())) == 2, "two workers")
        yield call


def test_a_second_interrupt_kills_workers_that_do_not_answer(tmp_path: Path) -> None:
    with deaf_workers(tmp_path) as call:
        call.process.send_signal(signal.SIGINT)
        time.sleep(ECHO_SECONDS + 0.2)  # an earlier one would be the same request by another way
        assert call.running
        call.process.send_signal(signal.SIGINT)
        done = call.wait(DEADLINE_S)
        call.require_gone()
    assert json.loads(done.stdout.splitlines()[-1])["kind"] == "KeyboardInterrupt", done.tail()


def test_no_worker_outlives_a_script_that_is_killed(tmp_path: Path) -> None:
    with deaf_workers(tmp_path) as call:
        call.process.kill()
        call.require_gone(DEADLINE_S)


def test_run_is_a_function_and_a_package_whichever_is_used_first(tmp_path: Path) -> None:
    program = "import hvdtrain; a = hvdtrain.run; import hvdtrain.run.result; print(hvdtrain.run is a, callable(a))"
    with Spawned([sys.executable, "-c", program], environment(), tmp_path) as spawned:
        assert spawned.wait(DEADLINE_S).stdout == "True True\n"
