"""Horovod's collectives with a deadline, and with sentences where ranks are lost or call different ones."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops

from hvdtrain.comm.peer_failure import peer_failures, waits_for_peers
from hvdtrain.errors import PeerError, UsageError
from hvdtrain.torch.call_arguments import completed

P = ParamSpec("P")
R = TypeVar("R")

_ENDED = ("shut down", "Connection", "timed out", "Timed out", "Timeout", "Broken pipe", "peer", "stalled", "failed")
_MISMATCHED = ("Mismatched", "not supported with Join", "Duplicate tensor name", "Invalid", "One or more ranks")


class LostPeerError(PeerError, HorovodInternalError):  # type: ignore[misc]
    """A collective ended because another rank did. `hvd.elastic.run` catches it, as Horovod's own error."""


class MismatchedCallError(UsageError, HorovodInternalError):  # type: ignore[misc]
    """Ranks have called a collective with arguments that do not fit together."""


def bounded(function: Callable[P, R], name: str = "") -> Callable[P, R]:
    """`function`, which waits for other ranks, with the limit on waiting that `init` has set; see `completed`, too.

    Raises:
        LostPeerError: another rank has ended or is late.
        MismatchedCallError: ranks gave different shapes, dtypes, or operations.
    """
    called = completed(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        with waits_for_peers(name=str(named.get("name") or name or function.__name__)):
            return called(*arguments, **named)

    return as_lost_peer(call)


def as_lost_peer(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose errors about other ranks are those of `bounded`: what it computes itself has no limit."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except LostPeerError:
            raise
        except PeerError as error:
            raise _described(error) from None  # the cause says less, on many lines

    return call


def submitted(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which begins a collective and waits for nobody, or without a limit, with the errors of `bounded`; see
    `completed`, too. Where other ranks have ended, Horovod refuses to begin."""
    called = completed(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        with peer_failures():
            return called(*arguments, **named)

    return as_lost_peer(call)


def _described(error: PeerError) -> BaseException:
    text = str(error.__cause__).replace("sparse_to_dense", "sparse_as_dense")  # the name that the argument has
    if error.__cause__ is not None and not any(sign in text for sign in (*_ENDED, *_MISMATCHED)):
        return error.__cause__  # of this rank's own call
    if any(sign in text for sign in _MISMATCHED):
        return MismatchedCallError(
            f"Horovod refused a collective: {text.strip().rstrip('.')}.",
            "All ranks must call the same collectives in the same way.",
            "compare what the ranks call, with which shapes and dtypes.",
        )
    return LostPeerError(
        error.fact,
        error.conflict,
        "see that rank's message, which comes first, or its stack (`py-spy dump --pid PID`). If it had fewer batches "
        "than this one: call hvd.join() after the last batch, or use DistributedDataParallel's join().",
    )


synchronize: Callable[[Any], Any] = bounded(mpi_ops.synchronize, "synchronize")
"""Wait for a handle of an asynchronous collective; returns its result."""


def wait_for(handle: Any) -> Any:
    """The result of a handle of Horovod's, or of a future that a function of the user's has returned."""
    return handle.wait() if isinstance(handle, torch.futures.Future) else synchronize(handle)
