"""`hvd.stop_requested()`: a signal that reaches one rank, or all, as one decision of all ranks after the same step."""

from typing import Final

from hvdtrain.engine.stop_vote import StopVote
from hvdtrain.stop_requests import StopSignals
from hvdtrain.torch.start import meeting_count
from hvdtrain.torch.world import communicator


class _Requests:
    """Of this process."""

    def __init__(self) -> None:
        self._signals: StopSignals | None = None
        self._vote: StopVote | None = None
        self._met = 0

    def asked(self) -> bool:
        if self._signals is None:
            comm = communicator("hvd.stop_requested()")
            self._signals = StopSignals("hvdtrain", answers=comm.topology.is_root).__enter__()
        if self._vote is None or self._met != meeting_count():  # ranks that have joined made fewer steps
            self._vote = StopVote(communicator("hvd.stop_requested()"), self._signals.asked, at_once=True)
            self._met = meeting_count()
            return self._vote.open()
        return self._vote.after_step()

    def reason(self) -> str:
        return self._vote.reason() if self._vote is not None else ""


_requests: Final = _Requests()


def stop_requested() -> bool:
    """Whether all ranks are to stop after this step. Call it on all ranks, once in each step.

    From the first call on, SIGTERM, SIGINT and SIGUSR1 no longer end the process: Slurm, Kubernetes and launchers send
    them to ask for an end. Some steps later this is True on all ranks, after the same step: they vote by one small
    allreduce, for which all wait, after 0.4 seconds or 32 steps, whichever comes first. While a rank has joined
    (`hvd.join()`), a request waits until all ranks have. A second SIGTERM or SIGINT ends the process at once.

        if hvd.stop_requested():
            checkpoint.save(step, wait=True)
            sys.exit(hvd.RESUMABLE)
    """
    return _requests.asked()


def stop_reason() -> str:
    """What has asked whom to stop, as "SIGTERM (rank 1)". Call it on all ranks."""
    return _requests.reason()
