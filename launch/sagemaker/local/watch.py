"""Watch over the containers of a job on this machine until all have ended, and tell how the job ended."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence
from typing import final

from hvdtrain.errors import RESUMABLE, HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.container.workers import ELSEWHERE
from hvdtrain.launch.sagemaker.failure import FILE
from hvdtrain.launch.sagemaker.local.container import END_SECONDS, LocalContainer
from hvdtrain.launch.sagemaker.local.pipes import PipeFeeder
from hvdtrain.launch.supervisor.signals import SignalInbox

_OTHERS_SECONDS = 8.0  # that containers may still run after one has failed: SageMaker ends them, too
_LOOK_SECONDS = 1.0  # between two looks at the simulators


class JobStoppedError(HvdtrainError):
    """The job was ended by a signal: exit code 75 if it can go on later, else 128 and the signal."""

    def __init__(self, fact: str, conflict: str, hint: str, exit_code: int) -> None:
        super().__init__(fact, conflict, hint)
        self.exit_code = exit_code


@final
class Watch:
    """One job.

    Args:
        containers: all of it, running.
        feeders: of their pipes.
        max_run_s: seconds until they are asked to end.
        inbox: signals to this process, which are passed on; None: somebody else sees to them.
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
            UsageError: what the job was told is wrong, its containers say.
            HvdtrainError: a container failed, the job took too long, or a signal stopped it.
        """
        with selectors.DefaultSelector() as selector:
            for container in self._containers:
                selector.register(container.pidfd, selectors.EVENT_READ, container)
            if self._inbox is not None:
                selector.register(self._inbox, selectors.EVENT_READ)
            while self._running:
                for key, _ in selector.select(self._until_next_look()):
                    if isinstance(key.data, LocalContainer):
                        selector.unregister(key.fileobj)
                        self._ended(key.data)
                self._pass_on_signals()
                self._act_on_deadlines()
                for feeder in self._feeders if self._running and self._kill_at is None else ():
                    feeder.require_running()
        self._judge()

    def _until_next_look(self) -> float:
        deadline = self._stop_at if self._kill_at is None else self._kill_at
        return min(max(0.0, deadline - time.monotonic()), _LOOK_SECONDS)

    def _ended(self, container: LocalContainer) -> None:
        self._running.remove(container)
        if container.process.wait() and self._kill_at is None:
            if not self._failed:
                self._stop_at = min(self._stop_at, time.monotonic() + _OTHERS_SECONDS)
            self._failed.append(container)

    def _pass_on_signals(self) -> None:
        for number in self._inbox.take() if self._inbox is not None else ():
            self._stopped_by = self._stopped_by or number
            self._ask(number)

    def _ask(self, number: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + END_SECONDS
        for container in self._running:
            container.send(number)

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if self._running and self._kill_at is None and now >= self._stop_at:
            self._is_late = not self._failed
            self._ask(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            for container in self._running:
                container.process.kill()

    def _judge(self) -> None:
        if self._failed:
            own = [container for container in self._failed if not container.account[0].startswith(ELSEWHERE)]
            raise _failure((own or self._failed)[0])
        codes = {container.process.returncode for container in self._containers}
        if self._stopped_by is not None and codes != {0}:
            raise _stopped(self._stopped_by, self._containers[0], codes <= {0, RESUMABLE})
        if self._is_late and codes != {0}:
            raise HvdtrainError(
                "The training job has not ended within its max_run_s.",
                "SageMaker would have ended it, and so it was ended here.",
                "give it more seconds, or less to do.",
            )


def _stopped(number: signal.Signals, first: LocalContainer, is_resumable: bool) -> JobStoppedError:
    text, hint = first.account
    return JobStoppedError(
        f"The training job was stopped by {number.name}.",
        text.partition("\n")[0] if is_resumable and text else "Not all of its workers left by themselves.",
        (is_resumable and hint) or f"{first.folders.output / FILE} has the whole account.",
        RESUMABLE if is_resumable else 128 + number,
    )


def _failure(container: LocalContainer) -> HvdtrainError:
    code, (text, hint) = container.process.returncode, container.account
    kind = UsageError if code == UsageError.exit_code else HvdtrainError
    return kind(
        f"The training job failed on {container.folders.base.name} with exit code {code}.",
        text or "It left no cause.",
        hint or f"{container.folders.output / FILE} has the whole account.",
    )
