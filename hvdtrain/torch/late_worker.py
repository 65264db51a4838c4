"""A worker that comes to an elastic job which trains already: the state that it is to have is the others'."""

from typing import Final

from hvdtrain.comm.messages import ranks_where
from hvdtrain.errors import PeerError
from hvdtrain.torch.world import communicator

_has_state: Final = [True]


def meet_others(starts: int) -> None:
    """Learn whether others have trained before. Collective, after each start in an elastic job.

    Args:
        starts: how often this process has joined a world.
    """
    try:
        earlier = ranks_where(communicator("hvd.init"), starts > 1, "hvdtrain.elastic.members")
    except PeerError:  # a further loss: the state's own collectives will fail, which `hvd.elastic.run` mends
        return
    if starts == 1 and earlier:
        _has_state[0] = False


def awaits_state() -> bool:
    """Whether the others are about to send it their state: they take part in no other collective before."""
    return not _has_state[0]


def state_has_come() -> None:
    """`hvd.elastic.run` calls the training function."""
    _has_state[0] = True
