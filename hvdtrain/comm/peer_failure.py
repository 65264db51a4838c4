"""Other ranks that fail or never start: one exception for broken collectives, and limits on waiting for these ranks.

At each limit this process ends, with a message. Only a thread can do that: the main thread is in a call of C that
nothing can interrupt. The launcher then ends the other ranks.
"""

import faulthandler
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

from hvdtrain import activity
from hvdtrain.errors import HvdtrainError, PeerError, UsageError
from hvdtrain.failure_record import Kind, left_to_raise, write_failure
from hvdtrain.log_flush import close_logs_before_exit
from hvdtrain.topology import Topology
from hvdtrain.topology.launcher_variables import LAUNCHER_VARIABLE

# TensorFlow wraps Horovod's status into errors of its own classes, which cannot be imported here without
# importing TensorFlow; torch raises HorovodInternalError. Both contain Horovod's texts.
_SIGNS = (
    "Horovod has been shut down",
    "HorovodAllreduce",
    "HorovodAllgather",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodReducescatter",
    "HorovodGrouped",
    "Connection closed by peer",
    "Connection reset by peer",
)

_NOT_FOR_PEOPLE = re.compile(r"\{\{.*?\}\}|\[[^]\s]*\.(?:cc|h):\d+\] ")
"""TensorFlow's names of graph nodes, and lines of Gloo's source."""

_FAILED_START = "Horovod initialization failed"  # horovod/common/basics.py

TIMEOUT_VARIABLE = "HVDTRAIN_START_TIMEOUT"

_START_SECONDS = 120.0
_GLOO_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_GLOO_SECONDS = 30.0  # its default: horovod/common/gloo/gloo_context.cc
_MOST_SECONDS = 86_400

# Horovod acts up to one and a half times --stall-timeout after the stall, and says which ranks are missing.
_TIMES = 3.0
_AT_LEAST_MORE = 30.0

CurrentWait = Callable[[], object | None]
"""Which wait a block is in that also computes: something that stays equal during one wait; None while it computes."""

_deadline: list["StallDeadline"] = []  # of this process, which has one Horovod


def limit_waits(rank: int, stall_timeout: float) -> None:
    """From now on, end this process if one of `waits_for_peers` exceeds the limit of `StallDeadline`."""
    if _deadline:
        _deadline[0].rank = rank  # of a later world
    else:
        _deadline.append(StallDeadline(rank, stall_timeout))


class peer_failures(AbstractContextManager[None]):  # noqa: N801  read as a function
    """Run a block with collectives; raise `PeerError` if one failed because of another rank. A class is entered sooner
    than a generator, and every step enters this one."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HvdtrainError) and is_peer_failure(error):
            raise PeerError(
                "A collective operation was aborted.",
                f"Another rank has ended or stalled: {_telling_sentence(error)}.",
                "read that rank's own message (it comes first) or its file under logs/.",
            ) from error


class waits_for_peers(peer_failures):  # noqa: N801  read as a function
    """Run collectives, as in `peer_failures`, and for a limited time.

    Args:
        current: which wait the block is in, if it also computes: this rank's own work has no limit.
        name: of the collective, for people.
    """

    def __init__(self, current: CurrentWait = lambda: True, name: str = "gradients") -> None:
        self._current, self._limit, self._name = current, _deadline[0] if _deadline else None, name

    def __enter__(self) -> None:
        activity.now.begin_wait(self._current, self._name)
        if self._limit is not None:
            self._limit.begin(self, self._current)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        activity.now.end_wait()
        if self._limit is not None:
            self._limit.end(self)
        super().__exit__(kind, error, traceback)


@contextmanager
def failed_starts(with_sets: bool = False) -> Iterator[None]:
    """Run `hvd.init`; raise `PeerError` if Gloo could not connect this rank to the others. `with_sets`: it is given
    process sets, and fails in the same way where these are not of this world."""
    try:
        yield
    except ValueError as error:
        if with_sets or _FAILED_START not in str(error):
            raise
        raise PeerError(
            "This rank could not connect to the others.",
            "Another one has ended meanwhile, or did not answer in time; Horovod's own line above says more.",
            "read the messages of the other ranks; `hvdtrain doctor` tries the connections between hosts; for workers "
            f"that start slowly, set {TIMEOUT_VARIABLE} to more seconds.",
        ) from error


def is_peer_failure(error: BaseException) -> bool:
    """Whether an exception of torch, TensorFlow or Horovod says that the ring is broken."""
    if type(error).__name__ == "HorovodInternalError":
        return True
    try:
        text = str(error)
    except Exception:  # a user's class, whose own error is not what has happened
        return False
    return any(sign in text for sign in _SIGNS)


def _telling_sentence(error: BaseException) -> str:
    """Horovod's own words; TensorFlow puts lines of its own before them."""
    line = next((line for line in str(error).splitlines() if any(sign in line for sign in _SIGNS)), "")
    plain = _NOT_FOR_PEOPLE.sub("", line)
    return plain.strip().partition(". ")[0][:200].rstrip(".:") or type(error).__name__


def end_process(rank: int, kind: Kind, error: HvdtrainError, with_stacks: bool = False) -> NoReturn:
    """Print `error` and exit; the launcher ends the other ranks. `with_stacks`: print each thread's stack, too."""
    message = f"rank {rank} on {socket.gethostname()}: {error}"
    is_left = left_to_raise(kind, rank, str(error), error.exit_code, message)
    if not is_left:
        write_failure(kind, rank, str(error), error.exit_code)
    if with_stacks:
        faulthandler.dump_traceback(sys.stderr)
    if not is_left:
        sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    close_logs_before_exit()
    os._exit(error.exit_code)


def start_timeout(environ: Mapping[str, str]) -> float:
    """Seconds that ranks wait for each other at the start. Raises UsageError: HVDTRAIN_START_TIMEOUT is not such a
    number."""
    text = environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return _START_SECONDS
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_SECONDS):
        raise UsageError(f"{TIMEOUT_VARIABLE} is {text!r}.", "It is a number of seconds.", "try 120.")
    return float(text)


@contextmanager
def bounded_start(topology: Topology, environ: MutableMapping[str, str]) -> Iterator[None]:
    """End this process, with a message, if the block takes longer than `start_timeout`; its launcher ends the others.

    MPI has no such limit: MPI_Init never returns in a rank whose peer does not start. Gloo gives up at its own limit;
    under horovodrun it gets this one, if HVDTRAIN_START_TIMEOUT is set and Gloo's variable is not.
    """
    if LAUNCHER_VARIABLE in environ:  # our supervisor watches the start, and names the missing rank
        yield
        return
    seconds = start_timeout(environ)
    if topology.launcher == "horovodrun" and environ.get("HOROVOD_CONTROLLER") == "gloo":
        seconds = _before_gloo(seconds, environ)
    watch = threading.Timer(seconds, _not_connected, (topology, seconds))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _before_gloo(seconds: float, environ: MutableMapping[str, str]) -> float:
    """`seconds`, or less where Gloo would give up before, without a message that names the ranks."""
    if environ.get(TIMEOUT_VARIABLE):
        environ.setdefault(_GLOO_VARIABLE, str(int(seconds) + 5))
    text = environ.get(_GLOO_VARIABLE, "")
    gloo = float(text) if text.isascii() and text.isdigit() else _GLOO_SECONDS
    return min(seconds, max(1.0, gloo - 1))


def _not_connected(topology: Topology, seconds: float) -> None:
    error = HvdtrainError(
        f"Not all of the {topology.size} ranks were connected within {seconds:g} s.",
        "One of them has not started, has ended, or cannot be reached from here.",
        f"look for a rank that says nothing, and for causes with `hvdtrain doctor`; if they need longer, set "
        f"{TIMEOUT_VARIABLE}, which --start-timeout does.",
    )
    end_process(topology.rank, "lost_rank", error)


class StallDeadline:
    """Ends this process if one wait in collectives exceeds three times --stall-timeout: if Horovod's own check fails.

    Horovod looks for stalled collectives in the thread that also talks to the other ranks. If one of them is frozen as
    a whole (SIGSTOP, a hung machine), that thread waits for its answer, and checks no more.
    """

    def __init__(self, rank: int, stall_timeout: float) -> None:
        self.rank = rank
        self._limit = max(_TIMES * stall_timeout, stall_timeout + _AT_LEAST_MORE)
        self._waits: dict[object, CurrentWait] = {}  # several threads may wait
        threading.Thread(target=self._watch, name="hvdtrain-stall-deadline", daemon=True).start()

    def begin(self, wait: object, current: CurrentWait) -> None:
        """From now on this process waits for other ranks whenever `current` shows a wait."""
        self._waits[wait] = current

    def end(self, wait: object) -> None:
        del self._waits[wait]

    def _watch(self) -> None:
        since: dict[object, float] = {}
        while True:
            time.sleep(min(1.0, self._limit / 10))
            now = time.monotonic()
            waits = {(wait, current()) for wait, current in list(self._waits.items())}
            since = {wait: since.get(wait, now) for wait in waits if wait[1] is not None}
            if since and now - min(since.values()) > self._limit:
                self._end()

    def _end(self) -> None:
        error = HvdtrainError(
            f"A collective has waited for other ranks for {self._limit:g} s.",
            "One of them is frozen as a whole, so Horovod's own stall check cannot end the job.",
            "look for the rank whose log ends first, and at its machine; the limit follows from --stall-timeout, in a "
            "script from HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.",
        )
        end_process(self.rank, "stall", error, with_stacks=True)
