"""`--trace`: which updates are meant, and what is refused. (--process-sets: tests/unit/comm.)"""

from __future__ import annotations

import pytest

from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.value_syntax import MOST, WARM_UP, TraceSteps, require_trained, trace_steps
from hvdtrain.errors import UsageError


def test_the_two_forms() -> None:
    assert trace_steps("100:110") == TraceSteps(100, 110)
    assert trace_steps(" 10 ") == TraceSteps(None, 10)
    assert parse_train_config(["--trace", "5:6"]).trace == "5:6"


@pytest.mark.parametrize(
    ("text", "step", "window"),
    [
        ("100:110", 0, (100, 110)),
        ("100:110", 104, (105, 110)),
        ("100:110", 110, None),
        ("7:7", 6, (7, 7)),
        ("10", 0, (WARM_UP + 1, WARM_UP + 10)),
        ("10", 50, (WARM_UP + 51, WARM_UP + 60)),
    ],
)
def test_what_is_recorded_after_a_step(text: str, step: int, window: tuple[int, int] | None) -> None:
    assert trace_steps(text).after(step) == window


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first and the last"),
        ("a:b", "first and the last"),
        ("1:2:3", "first and the last"),
        ("-5", "first and the last"),
        ("9:8", "no update"),
        ("0", "no update"),
        ("0:5", "no update"),
        (f"1:{MOST + 1}", "too large"),
        (f"{MOST + 1}", "too large"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        trace_steps(text)
    assert f"--trace is {text}." in str(refused.value)
    with pytest.raises(UsageError):
        parse_train_config([f"--trace={text}"])


def test_not_with_several_updates_a_call() -> None:
    with pytest.raises(UsageError, match="--trace 5:6 is given with --steps-per-call 8"):
        parse_train_config(["--trace", "5:6", "--steps-per-call", "8"])


def test_updates_that_are_never_trained_are_refused() -> None:
    for text, updates in (("10:12", 10), ("3:40", 20), ("10", 5)):  # the last one may end early, which is told then
        require_trained(text, updates)
    with pytest.raises(UsageError, match="Training ends after update 30, so that nothing would be recorded") as caught:
        require_trained("31:40", 30)
    assert "--trace 21:30" in str(caught.value)
