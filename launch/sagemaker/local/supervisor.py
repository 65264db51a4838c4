"""Watch over the containers of a job on this machine until all have ended, and report how the job ended."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Sequence
from typing import final

from hvdtrain.errors import RESUMABLE, HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.container.workers import ELSEWHERE
from hvdtrain.launch.sagemaker.failure import FILE
from hvdtrain.launch.sagemaker.local.container import END_SECONDS, LocalContainer, PipeFeeder
from hvdtrain.launch.supervisor.signals import SignalInbox

_OTHERS_SECONDS = 8.0  # that containers may still run after one has failed: SageMaker ends them, too
_LOOK_SECONDS = 1.0  # between two looks at the simulators


@final
class ContainerSupervisor:
    """One job.

    Args:
        containers: all of it, running.
        feeders: of their pipes.
        max_run_s: seconds until they are asked to end.
        inbox: signals to this process, which are passed on; None: somebody else handles them.
    """

    def __init__(
        self,
        containers: Sequence[LocalContainer],
        feeders: Sequence[PipeFeeder],
        max_run_s: float,
        inbox: SignalInbox | None,
    ) -> None:
        self._containers, self._feeders, self._inbox = containers, feeders, inbox
        self._running = list(containers)
        self._failed: list[LocalContainer] = []
        self._stop_at = time.monotonic() + max_run_s
        self._kill_at: float | None = None
        self._stopped_by: signal.Signals | None = None
        self._is_late = False

    def run(self) -> None:
        """Return when all have ended well.

        Raises:
            UsageError: a container reports that what the job was told is wrong.
            HvdtrainError: a container failed, the job took too long, or a signal stopped it, with exit code 75 if it
                can go on later, else 128 and the signal.
        """
        while self._running:
            self._wait_for_an_event()
            for container in [each for each in self._running if each.process.poll() is not None]:
                self._on_end(container)
            for number in self._inbox.take() if self._inbox is not None else ():
                self._stopped_by = self._stopped_by or number
                self._stop(number)
            self._act_on_deadlines()
            for feeder in self._feeders if self._running and self._kill_at is None else ():
                feeder.require_running()
        self._raise_failure()

    def _wait_for_an_event(self) -> None:
        poll = select.poll()
        for container in self._running:
            poll.register(container.pidfd, select.POLLIN)
        if self._inbox is not None:
            poll.register(self._inbox, select.POLLIN)
        deadline = self._stop_at if self._kill_at is None else self._kill_at
        poll.poll(1000 * min(max(0.0, deadline - time.monotonic()), _LOOK_SECONDS))

    def _on_end(self, container: LocalContainer) -> None:
        self._running.remove(container)
        if container.process.returncode and self._kill_at is None:
            if not self._failed:
                self._stop_at = min(self._stop_at, time.monotonic() + _OTHERS_SECONDS)
            self._failed.append(container)

    def _stop(self, number: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + END_SECONDS
        for container in self._running:
            container.send(number)

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if self._running and self._kill_at is None and now >= self._stop_at:
            self._is_late = not self._failed
            self._stop(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            for container in self._running:
                container.process.kill()

    def _raise_failure(self) -> None:
        if self._failed:
            causes = [container for container in self._failed if not container.failure[0].startswith(ELSEWHERE)]
            raise _failure((causes or self._failed)[0])
        codes = {container.process.returncode for container in self._containers}
        if self._stopped_by is not None and codes != {0}:
            raise _stopped(self._stopped_by, self._containers[0], codes <= {0, RESUMABLE})
        if self._is_late and codes != {0}:
            raise HvdtrainError(
                "The training job has not ended within its max_run_s.",
                "SageMaker would have ended it, and so it was ended here.",
                "give it more seconds, or less to do.",
            )


def _stopped(number: signal.Signals, first: LocalContainer, is_resumable: bool) -> HvdtrainError:
    text, hint = first.failure
    error = HvdtrainError(
        f"The training job was stopped by {number.name}.",
        text.partition("\n")[0] if is_resumable and text else "Not all of its workers left by themselves.",
        (is_resumable and hint) or f"{first.folders.output / FILE} has the whole account.",
    )
    error.exit_code = RESUMABLE if is_resumable else 128 + number
    return error


def _failure(container: LocalContainer) -> HvdtrainError:
    code, (text, hint) = container.process.returncode, container.failure
    kind = UsageError if code == UsageError.exit_code else HvdtrainError
    return kind(
        f"The training job failed on {container.folders.base.name} with exit code {code}.",
        text or "It left no cause.",
        hint or f"{container.folders.output / FILE} has the whole account.",
    )
