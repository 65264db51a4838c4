"""A limit on how long ranks wait for each other at the start. MPI has none, and Gloo aborts the process at its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from hvdtrain.comm.ending import end_process
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology
from hvdtrain.topology.readers.horovod import LAUNCHER_VARIABLE

TIMEOUT_VARIABLE = "HVDTRAIN_START_TIMEOUT"

_DEFAULT_SECONDS = 120.0
_GLOO_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_GLOO_SECONDS = 30.0  # its default: horovod/common/gloo/gloo_context.cc
_MOST_SECONDS = 86_400


def start_timeout(environ: Mapping[str, str]) -> float:
    """Seconds that ranks wait for each other at the start.

    Raises:
        UsageError: HVDTRAIN_START_TIMEOUT is no such number.
    """
    text = environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return _DEFAULT_SECONDS
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_SECONDS):
        raise UsageError(f"{TIMEOUT_VARIABLE} is {text!r}.", "It is a number of seconds.", "try 120.")
    return float(text)


@contextmanager
def bounded_start(topology: Topology, environ: MutableMapping[str, str]) -> Iterator[None]:
    """End this process, with a message, if the block takes longer than `start_timeout`; its launcher ends the others.

    Nothing else can end a wait in C: MPI_Init of a rank whose peer never comes returns never. Under horovodrun, Gloo is
    told to wait as long as that, if HVDTRAIN_START_TIMEOUT is set and Gloo's own variable is not.
    """
    if LAUNCHER_VARIABLE in environ:  # a supervisor of ours watches the start, and names the rank that is missing
        yield
        return
    seconds = start_timeout(environ)
    if topology.launcher == "horovodrun" and environ.get("HOROVOD_CONTROLLER") == "gloo":
        seconds = _before_gloo(seconds, environ)
    watch = threading.Timer(seconds, _leave, (topology, seconds))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _before_gloo(seconds: float, environ: MutableMapping[str, str]) -> float:
    """`seconds`, or less where Gloo would abort the process before, which says nothing to people."""
    if environ.get(TIMEOUT_VARIABLE):
        environ.setdefault(_GLOO_VARIABLE, str(int(seconds) + 5))
    text = environ.get(_GLOO_VARIABLE, "")
    gloo = float(text) if text.isascii() and text.isdigit() else _GLOO_SECONDS
    return min(seconds, max(1.0, gloo - 1))


def _leave(topology: Topology, seconds: float) -> None:
    error = HvdtrainError(
        f"Not all of the {topology.size} ranks were connected within {seconds:g} s.",
        "One of them has not started, has ended, or cannot be reached from here.",
        f"look for a rank that says nothing, and for causes with `hvdtrain doctor`; if they need longer, set "
        f"{TIMEOUT_VARIABLE}, which --start-timeout does.",
    )
    end_process(topology.rank, "lost_rank", error)
