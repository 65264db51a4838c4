"""Start a job again after a failure, so often and so late as its policy says."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.signals import SignalInbox

MAX_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a failed job is started again, and how many seconds before the first time.

    Each further restart waits twice as long, at most MAX_BACKOFF_SECONDS.
    """

    most: int
    backoff: float


def run_with_restarts(
    attempt: Callable[[int], JobOutcome], policy: RestartPolicy, console: Console, inbox: SignalInbox
) -> int:
    """Attempt until the job has ended; returns the exit code.

    Args:
        attempt: starts all workers and returns when they have ended; it is told how many restarts came before.
        policy: when to try again.
        console: for the launcher's own words.
        inbox: a signal ends the wait for a restart.

    Raises:
        HvdtrainError: what `attempt` raised, or the launcher has an error of its own; whoever called this then ends
            all workers, and starts none again.
    """
    restarts = 0
    while True:
        outcome = _attempted(attempt, restarts)
        if not outcome.may_restart or restarts >= policy.most:
            if outcome.may_restart and policy.most:
                console.say(f"hvdtrain launch: given up after {restarts} of {policy.most} restarts.")
            return outcome.code
        stopped_by = _back_off(policy, restarts, console, inbox)
        if stopped_by is not None:
            console.say(f"hvdtrain launch: stopped by {stopped_by.name} before the restart.")
            return 128 + stopped_by
        restarts += 1


def _attempted(attempt: Callable[[int], JobOutcome], restarts: int) -> JobOutcome:
    try:
        return attempt(restarts)
    except HvdtrainError:
        raise
    except Exception as error:
        raise HvdtrainError(
            f"The launcher itself failed: {type(error).__name__}: {error}.",
            "Nobody would watch over the workers, so all of them were ended.",
            "start the job again with --resume auto, and report this, for it is an error of hvdtrain:\n"
            + traceback.format_exc(),
        ) from error


def _back_off(policy: RestartPolicy, restarts: int, console: Console, inbox: SignalInbox) -> signal.Signals | None:
    seconds = min(policy.backoff * 2**restarts, MAX_BACKOFF_SECONDS)
    console.say(f"hvdtrain launch: restart {restarts + 1} of {policy.most} in {seconds:g} s.")
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        number = inbox.wait(left)
        if number is not None:
            return number
    return None
