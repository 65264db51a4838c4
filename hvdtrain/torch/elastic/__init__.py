"""The names of `horovod.torch.elastic`: `@hvd.elastic.run`, and states that survive lost and new workers."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import state as _horovod
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.mpi_ops import shutdown

from hvdtrain.errors import PeerError, missing_name
from hvdtrain.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from hvdtrain.torch.late_worker import has_state
from hvdtrain.torch.start import init

__all__ = ["ElasticSampler", "TorchState", "run"]


class TorchState(_horovod.TorchState):  # type: ignore[misc]
    """Horovod's, whose `sync` changes no weight of rank 0, and sends tensors of any dtype and memory layout."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bcast_object = broadcast_object

    def sync(self) -> None:
        """Give all ranks the state of rank 0. Collective."""
        for handler in self._handlers.values():
            # Classes of the user's own, in Horovod's registry of handlers, have their own way.
            if type(handler) is _horovod.ModelStateHandler:
                broadcast_parameters(handler.value.state_dict(), 0)
            elif type(handler) is _horovod.OptimizerStateHandler:
                broadcast_optimizer_state(handler.value, 0)
            else:
                handler.sync()
        super(_horovod.TorchState, self).sync()
        # Only now, when all has come: a worker that loses others before its first commit goes back to one whole state.
        for handler in self._handlers.values():
            handler.save()

    def reset(self) -> None:
        """Let samplers divide what is left of the epoch by the ranks there are now. Called in each new world: no `sync`
        comes after it where workers have only left."""
        super().reset()
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function, whose first argument is a state: `horovod.torch.elastic.run`.

    After a lost worker the state goes back to its last commit; after a new one it is sent to all. Then `func` begins
    again in the new world.
    """

    @functools.wraps(func)
    def call(*arguments: Any, **named: Any) -> Any:
        has_state()
        try:
            return func(*arguments, **named)
        except HorovodInternalError:
            raise
        except PeerError as error:
            raise HorovodInternalError(error) from error

    decorated: Callable[..., Any] = run_fn(call, _join_next_world)
    return decorated


def _join_next_world() -> None:
    shutdown()
    init()


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.torch.elastic", name, __all__)
