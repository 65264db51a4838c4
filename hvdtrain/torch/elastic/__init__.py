"""The names of `horovod.torch.elastic`: `@hvd.elastic.run`, and states that survive lost and new workers."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import shutdown

from hvdtrain.errors import PeerError, missing_name
from hvdtrain.torch.start import init

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function, whose first argument is a state: `horovod.torch.elastic.run`.

    After a lost worker the state goes back to its last commit; after a new one it is sent to all. Then `func` begins
    again in the new world.
    """

    @functools.wraps(func)
    def call(*arguments: Any, **named: Any) -> Any:
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
