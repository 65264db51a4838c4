"""One thing that goes wrong in a task, on one rank or all, at one call of one of its methods.

The test says which in the variable TRAIN_FAULT, because a fault at import comes before any argument is read:
    {"place": "decode", "kind": "raise", "rank": 1, "call": 3, "stamp": "/path"}
With "once": true it comes in one start only, and not in restarts.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology

_calls: dict[str, int] = {}
_counting = threading.Lock()  # several threads decode at once, and one of them shall see each number


def strikes(place: str) -> str | None:
    """The kind of fault if it is due now, at this call of `place` on this rank; writes the time into its stamp."""
    fault: dict[str, Any] = json.loads(os.environ.get("TRAIN_FAULT", "{}"))
    if fault.get("place") != place or fault["rank"] not in ("all", detect_topology(os.environ).rank):
        return None
    with _counting:
        call = _calls[place] = _calls.get(place, 0) + 1
    if call != fault["call"] or (fault.get("once") and Path(fault["stamp"]).exists()):
        return None
    Path(fault["stamp"]).write_text(str(time.monotonic()))
    return str(fault["kind"])


def fail(place: str) -> None:
    """Do what is due now in `place`; all kinds but "fill" end the process, raise, or never return."""
    kind = strikes(place)
    if kind == "fill":
        _fill_disk(Path(os.environ["FILL_FOLDER"]) / "filler")
    elif kind is not None:
        _act(kind, place)


def slow(place: str) -> None:
    """Take so long as TRAIN_SLOW says, if it names `place` with this rank: {"open_data": [1, 6.0]}."""
    rank, seconds = json.loads(os.environ.get("TRAIN_SLOW", "{}")).get(place, (None, 0.0))
    if rank == detect_topology(os.environ).rank:
        time.sleep(seconds)


def slow_disk() -> None:
    """From now on, a checkpoint's weights and the report reach the disk as slowly as TRAIN_SLOW says."""
    fsync = os.fsync

    def slow_fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")
        if "model.safetensors" in path:
            slow("disk")
        if "report.html" in path:
            slow("report")
        fsync(file)

    os.fsync = slow_fsync


def fail_in_average(hvd: Any, function: str) -> None:
    """From now on, Horovod's collectives that average weights do first what is due in "average"."""
    collective = getattr(hvd, function)

    def failing(tensor: Any, **options: Any) -> Any:
        if re.match("hvdtrain.weights", options["name"]):
            fail("average")
        return collective(tensor, **options)

    setattr(hvd, function, failing)


def _fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _act(kind: str, place: str) -> NoReturn:
    if kind == "raise":
        raise RuntimeError(f"deliberate failure in {place}")
    if kind == "refuse":
        raise UsageError(f"There is a deliberate refusal in {place}.", "It is on one rank only.", "look at that rank.")
    if kind == "exit":
        sys.exit(0)
    if kind == "leave":
        os._exit(0)
    if kind == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "freeze": signal.SIGSTOP}[kind])
    raise AssertionError(f"{kind} did not end this process")
