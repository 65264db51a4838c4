"""`hvdtrain call FOLDER`: what `hvdtrain.run` starts as each worker. It is not for people, and no help lists it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.cli.failure import who
from hvdtrain.cli.python_calls.rank_results import CALL, write_exception, write_value
from hvdtrain.comm.open import STALL_TIMEOUT
from hvdtrain.comm.peer_failure import peer_failures
from hvdtrain.errors import UsageError
from hvdtrain.exit_watch import completed
from hvdtrain.tasks.by_value import unpacked
from hvdtrain.topology import detect_topology


def run(argv: Sequence[str]) -> int:
    """Call the function that FOLDER holds, and write there what it returns or raises. Returns 0. The process is ended
    where it does not end then, because of a thread that the function has left, say; see `completed`.

    Raises: what the function raises; PeerError where a collective failed because of another rank. UsageError: FOLDER or
    the function is not here, or its result cannot be pickled.
    """
    if len(argv) != 1:
        raise UsageError(
            f"`hvdtrain call` was given {len(argv)} arguments.",
            "hvdtrain.run starts it in its workers, with one.",
            "call hvdtrain.run(function, np=2) in Python.",
        )
    rank = detect_topology(os.environ).rank
    return completed(rank, who, lambda: _call(Path(argv[0]), rank))


def _call(folder: Path, rank: int) -> int:
    # Horovod itself lets a collective wait without an end for a rank that has stopped.
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(int(STALL_TIMEOUT)))
    function, args, kwargs, start_timeout = unpacked(folder / CALL, "the function")
    if start_timeout is not None:
        os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(1, int(start_timeout)))
    try:
        with peer_failures():
            value = _called(function, args, kwargs)
    except BaseException as error:
        write_exception(folder, rank, error)
        raise
    write_value(folder, rank, name_of(function), value)
    return 0


def name_of(function: Any) -> str:
    """For messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def _called(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"{name_of(function)}() called sys.exit({error.code!r}), and so has no result") from error
