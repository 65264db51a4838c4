"""How a job has ended becomes an exception of the process that has asked for it."""

from __future__ import annotations

import signal

import pytest

from hvdtrain.cli.python_calls.job_failure import failure_of, require_success
from hvdtrain.cli.python_calls.launched_job import JobEnd
from hvdtrain.cli.python_calls.own_job import require_count
from hvdtrain.errors import HvdtrainError, PeerError, UsageError
from hvdtrain.failure_record import FailureRecord, Kind


def end(kind: Kind, cause: str, code: int = 1, detail: str = "") -> JobEnd:
    return JobEnd(code, FailureRecord(kind, 1, "node7", cause, code, detail))


@pytest.mark.parametrize("code", [0, 75])
def test_a_good_end_raises_nothing(code: int) -> None:
    require_success(JobEnd(code, None))


@pytest.mark.parametrize(
    "error",
    [
        UsageError("There is no file a. b.", "It was named.", "name another."),
        UsageError("3.5 is no number.", "It must be whole.", "give one, e.g. 3.\nOr none."),
        HvdtrainError("The loss is nan at step 3.", "Nothing is saved.", "lower --lr."),
    ],
)
def test_an_error_of_a_worker_has_its_class_and_its_text(error: HvdtrainError) -> None:
    again = failure_of(end("error", str(error), error.exit_code))
    assert (type(again), str(again), again.conflict) == (type(error), str(error), error.conflict)


def test_an_exception_of_user_code_names_rank_and_host_and_keeps_the_traceback() -> None:
    error = failure_of(end("exception", "KeyError: 'x' (task.py:3 in decode)", detail="Traceback ..."))
    assert error.fact == "Rank 1 on node7 failed: KeyError: 'x' (task.py:3 in decode)."
    assert error.__notes__ == ["Traceback ..."]


@pytest.mark.parametrize(("who", "notes"), [("rank 1 on node7", ["Raised by rank 1 on node7."]), ("hvdtrain", None)])
def test_what_nobody_has_printed_is_in_the_error_once(who: str, notes: list[str] | None) -> None:
    again = failure_of(end("error", "It is. It must not.\nHINT: go.", detail=f"{who}: It is. It must not.\nHINT: go."))
    assert (str(again), getattr(again, "__notes__", None)) == ("It is. It must not.\nHINT: go.", notes)
    killed = failure_of(end("signal", "rank 1 of 2 was killed", detail="rank 1 of 2 was killed. Its last lines: …"))
    assert killed.__notes__ == ["rank 1 of 2 was killed. Its last lines: …"]


def test_a_rank_that_was_lost_is_a_peer_error() -> None:
    assert type(failure_of(end("lost_rank", "A rank is gone. It was killed.\nHINT: look."))) is PeerError


@pytest.mark.parametrize(("code", "how"), [(-9, "was killed by signal 9"), (3, "ended with exit code 3")])
def test_a_launcher_without_words_is_named(code: int, how: str) -> None:
    assert how in failure_of(JobEnd(code, None)).fact


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_job_that_a_signal_has_ended_ends_its_caller_as_that_signal(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        require_success(end("signal", f"{number.name} came again", 128 + number))


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", None])
def test_what_is_no_number_of_workers_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="^workers is "):
        require_count("workers", value)
