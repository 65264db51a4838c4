"""The names of `horovod.torch.elastic`: `@hvd.elastic.run`, and states that survive lost and new workers."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import state as _horovod
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.mpi_ops import shutdown
from torch import nn

from hvdtrain.adapters.elastic_values import CopiedValues
from hvdtrain.errors import PeerError, UsageError, missing_name
from hvdtrain.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from hvdtrain.torch.late_worker import state_has_come
from hvdtrain.torch.plain_state import has_state
from hvdtrain.torch.start import init

__all__ = ["ElasticSampler", "TorchState", "run"]


class TorchState(_horovod.TorchState, CopiedValues):  # type: ignore[misc]
    """Horovod's, whose `sync` changes no weight of rank 0, and sends tensors of any dtype and memory layout.

    Of schedulers, GradScalers and other objects with a `state_dict`, the dict is kept and sent, and the objects stay.
    Of other values copies are kept.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        stateful = {name: value for name, value in values.items() if has_state(value) and not _has_handler(value)}
        self._stateful = list(stateful.values())
        super().__init__(**{name: value for name, value in values.items() if name not in stateful})
        self._bcast_object = broadcast_object
        for name, value in stateful.items():
            setattr(self, name, value)
            self._handlers[name] = _StateDictHandler(value)

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

    def _not_copied(self) -> Iterator[Any]:
        yield from self._stateful
        for handler in self._handlers.values():
            yield handler.value
            if isinstance(handler.value, nn.Module):
                yield from (*handler.value.modules(), *handler.value.parameters(), *handler.value.buffers())


class _StateDictHandler(_horovod.StateHandler):  # type: ignore[misc]
    """Keeps and sends an object's `state_dict`. The object itself would arrive with a copy of all that it refers to, as
    a scheduler does to its optimizer."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def set_value(self, value: Any) -> None:
        """Raises `UsageError`: it has no state to keep."""
        if not has_state(value):
            raise UsageError(
                f"The elastic state was given an object of type {type(value).__name__} in the place of a "
                f"{type(self.value).__name__}.",
                "It has no state_dict() and load_state_dict(), by which that one is kept and sent.",
                "make a new state.",
            )
        super().set_value(value)

    def save(self) -> None:
        self._kept = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._kept))

    def sync(self) -> None:
        of_root = broadcast_object(self.value.state_dict(), 0)
        # On rank 0, too: loading may change what an object does next, and ranks do the same.
        self.value.load_state_dict(copy.deepcopy(of_root))


def _has_handler(value: Any) -> bool:
    return any(isinstance(value, kind) for kind, _ in _horovod.get_handler_registry())


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function, whose first argument is a state: `horovod.torch.elastic.run`.

    After a lost worker the state goes back to its last commit; after a new one it is sent to all. Then `func` begins
    again in the new world.
    """

    @functools.wraps(func)
    def call(*arguments: Any, **named: Any) -> Any:
        state_has_come()
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
