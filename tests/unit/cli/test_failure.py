"""What is shown of an exception: the user's frames of every exception in its chain; all of it where there are none.
And what an interrupt leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.cli.failure import Failure
from hvdtrain.failure_record import FILE_VARIABLE, RAISED_VARIABLE, FailureFile


def failure_of(work: object) -> Failure:
    assert callable(work)
    try:
        work()
    except Exception as error:
        return Failure(error)
    raise AssertionError("nothing failed")


def bad_shapes() -> None:
    np.linalg.inv(np.zeros((2, 3)))


def bad_json() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise RuntimeError("the labels\nare {unreadable}") from error


def test_the_last_frame_is_the_user_s_although_a_library_raised() -> None:
    failure = failure_of(bad_shapes)
    shown = failure.traceback("out/logs/rank_0.log")
    assert "site-packages" not in shown
    assert "frames of libraries are not shown; all are in out/logs/rank_0.log):\n" in shown
    frame, error = shown.rstrip().splitlines()[-3 if "^" in shown else -2 :][0], shown.rstrip().splitlines()[-1]
    assert "np.linalg.inv" in frame
    assert error.startswith("numpy.linalg.LinAlgError: ")
    assert "site-packages" in failure.full
    assert failure.line().endswith("in bad_shapes)")


def test_causes_are_told_too_and_one_line_stays_one() -> None:
    failure = failure_of(bad_json)
    shown = failure.traceback(None)
    assert shown.index("JSONDecodeError") < shown.index("direct cause") < shown.index("RuntimeError: the labels")
    assert "decoder.py" not in shown
    assert "\n" not in failure.line()
    assert "RuntimeError: the labels" in failure.line()


def bad_layer() -> None:
    raise ValueError(
        "Exception encountered when calling Sequential.call().\n\n\x1b[1mInvalid input shape (2, 65)\x1b[0m\n\n"
        "Arguments received by Sequential.call():\n  • inputs=tf.Tensor(shape=(2, 65))\n  • training=False"
    )


def test_what_keras_says_ends_with_the_cause_and_has_no_colours() -> None:
    failure = failure_of(bad_layer)
    assert failure.traceback(None).endswith("Sequential.call().\n\nInvalid input shape (2, 65)\n")
    assert "call(). Invalid input shape (2, 65) (" in failure.line()
    assert "\x1b" not in failure.full
    assert "training=False" in failure.full


def test_a_defect_of_ours_shows_everything() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        failure = Failure(error)
    assert failure.traceback(None) == f":\n{failure.full}"
    assert "decoder.py" in failure.full


INTERRUPTED = """
import sys
from hvdtrain.cli import env, main
def run(argv):
    raise KeyboardInterrupt
env.run = run
sys.exit(main(["env"]))
"""


def test_an_interrupt_leaves_a_record() -> None:
    file = FailureFile()
    place = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=Path(__file__).parents[3],
        env={FILE_VARIABLE: file.place, **{f"HOROVOD_{name}": value for name, value in place.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )
    record = file.read()
    file.close()
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert record is not None
    assert (record.kind, record.rank, record.exit_code, record.is_consequence) == ("signal", 1, 130, False)


FAILING = """
import sys
from hvdtrain.cli import env, main
from hvdtrain.errors import HvdtrainError
def run(argv):
    raise HvdtrainError("It is.", "It must not.", "go.") if sys.argv[1] == "ours" else LookupError("nothing")
env.run = run
sys.exit(main(["env"]))
"""


@pytest.mark.parametrize(("whose", "last"), [("ours", "hvdtrain: It is. It must not.\nHINT: go."), ("theirs", "")])
def test_what_the_caller_raises_is_not_printed(whose: str, last: str) -> None:
    file = FailureFile()
    done = subprocess.run(
        [sys.executable, "-c", FAILING, whose],
        cwd=Path(__file__).parents[3],
        env={FILE_VARIABLE: file.place, RAISED_VARIABLE: "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    record = file.read()
    file.close()
    assert (done.returncode, done.stderr) == (1, "")
    assert record is not None
    assert record.detail.endswith(last or "LookupError: nothing\n"), record.detail
