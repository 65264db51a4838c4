"""The `Elastic` of a job whose workers stay the same: a loss ends all of them."""

from collections.abc import Sequence

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.supervisor.diagnosis import JobOutcome


class FixedWorkers:
    """Does nothing; see `hvdtrain.launch.supervisor.elastic.Elastic` for what each method is for."""

    gave_up = ""
    may_be_alone = False
    server: RendezvousServer | None = None

    def hear(self, _number: int, _message: object) -> None: ...

    def stop(self) -> None: ...

    def goes_on_without(self, _number: int, _mendable: bool) -> bool:
        return False

    def next_deadline(self, _may_change: bool) -> float | None:
        return None

    def overdue(self) -> Sequence[int]:
        return ()

    def act(self, _connected: bool) -> bool:
        return False

    def with_losses(self, outcome: JobOutcome) -> JobOutcome:
        return outcome
