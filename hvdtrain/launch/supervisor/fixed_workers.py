"""The `Elastic` of a job whose workers stay the same: a loss ends all of them."""

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.supervisor.deadlines import Departures
from hvdtrain.launch.supervisor.losses import Losses


class FixedWorkers:
    """Does nothing; see `hvdtrain.launch.supervisor.elastic.Elastic` for what each name is for."""

    gave_up = ""
    may_be_alone = False
    deadline: float | None = None
    server: RendezvousServer | None = None
    losses = Losses(most=0, restarts=0)
    departures = Departures(kill=lambda _number: None)

    def hear(self, _number: int, _message: object) -> None: ...

    def stop(self) -> None: ...

    def goes_on_without(self, _number: int, _mendable: bool) -> bool:
        return False

    def act(self, _connected: bool) -> bool:
        return False
