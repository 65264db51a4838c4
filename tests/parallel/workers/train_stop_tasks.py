"""The digits, with requests to stop that arrive at a chosen place, and with a disk that is slow at a chosen place.

The test says which in the variable TRAIN_STOP, because some come before any argument is read:
    {"signal": "SIGTERM", "ranks": [1], "place": "decode", "call": 3}
SLOW_RENAME is a pattern: who renames a file to a name that it matches waits for half a minute.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hvdtrain.engine import events
from hvdtrain.topology import detect_topology

_SLOW_SECONDS = 30.0
_calls: dict[str, int] = {}
_counting = threading.Lock()  # several threads decode at once, and one of them shall see each number


def reach(place: str) -> None:
    """Send this process the signal that is due at this call of `place` on this rank."""
    request: dict[str, Any] = json.loads(os.environ.get("TRAIN_STOP", "{}"))
    if request.get("place") != place or detect_topology(os.environ).rank not in request["ranks"]:
        return
    with _counting:
        call = _calls[place] = _calls.get(place, 0) + 1
    if call == request.get("call", 1):
        os.kill(os.getpid(), signal.Signals[request["signal"]])


def reach_step(event: Any) -> None:
    """A callback: the place "step" is the same moment on all ranks, between two votes of theirs."""
    if isinstance(event, events.StepEnded):
        reach("step")


def _slow_down(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and re.search(os.environ["SLOW_RENAME"], str(arguments[1])):
        Path(os.environ["SLOW_STAMP"]).write_text(str(os.getpid()))
        time.sleep(_SLOW_SECONDS)


if "SLOW_RENAME" in os.environ:
    sys.addaudithook(_slow_down)
reach("import")
