"""How a worker of an elastic job gets from one world to the next: a socket between it and its launcher.

A world is a set of workers that train together. It ends when one of them is lost, or when the launcher wants another
number of workers. Lines of JSON, each an object with one of these keys:

    worker → launcher   ready: N          it has left world N, and waits for the next one; 0: it was in none yet
                        trains: N         it begins with the updates of world N; threads: M, with which it computes,
                                          where later workers must do so too, or null
                        fixed: true       it cannot leave its world: after a loss all are to be started again
    launcher → worker   change: true      stop after an update, with a checkpoint, and come back
                        over: N           world N has lost a worker: do not wait for it
                        variables: {...}  the next world: environment variables; null removes one
                        leave: CODE       there is no place for it: end with that exit code
"""

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from hvdtrain.errors import HvdtrainError

CHANNEL_VARIABLE: Final = "HVDTRAIN_WORLD_CHANNEL"  # the number of the worker's end of the socket
WORLD_VARIABLE: Final = "HVDTRAIN_WORLD"
"""The number of the world that a worker is in, from 1; 0: it has to ask for its first one."""

THREADS_VARIABLE: Final = "HVDTRAIN_VIRTUAL_WORKER_THREADS"
"""With how many threads the first world of a job with virtual workers computes, and so all later ones."""

CHANGE: Final = "a change of workers"  # why all workers have stopped, where the launcher wants another world


def is_change(stopped_by: str) -> bool:
    """Whether CHANGE alone has stopped a training, by what all ranks said: "REASON (RANKS), REASON (RANKS)"."""
    reasons = stopped_by.split("), ")
    return all(reason.startswith(CHANGE) for reason in reasons)


_READ_BYTES = 2**16
_MOST_BYTES = 2**22  # of a line


class LineReader:
    """Objects of JSON from bytes as they arrive. Raises ValueError: what has arrived is not such a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MOST_BYTES:
            raise ValueError("a line without an end")
        read = [json.loads(line) for line in lines]
        if not all(isinstance(line, dict) for line in read):
            raise ValueError("a line that is not an object")
        return read


def line_of(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class WorldChannel:
    """The worker's end. A thread reads what the launcher says, whatever the worker does. `when_over`: called in that
    thread when the world in which this worker is has lost another one."""

    def __init__(self, file: int) -> None:
        self._socket = socket.socket(fileno=file)
        self._socket.set_inheritable(False)
        self._wanted = False
        self._trains_in = ""
        self.when_over: Callable[[], object] = lambda: None
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="hvdtrain-world-channel", daemon=True).start()

    def change(self) -> str | None:
        """CHANGE once the launcher wants another world than the one that this worker is in: a `StopRequest`.

        Training asks right before its first update, when everything is restored, and again and again. The first time,
        this tells the launcher: workers that it started earlier would take the processor from the ones that recover.
        """
        world = os.environ.get(WORLD_VARIABLE, "0")
        if self._trains_in != world:
            self._trains_in = world
            self._say({"trains": int(world), "threads": os.environ.get(THREADS_VARIABLE)})
        return CHANGE if self._wanted else None

    def tell_fixed(self) -> None:
        self._say({"fixed": True})

    def next_world(self) -> int | None:
        """Wait for the next world, and put its variables into `os.environ`. Returns None, or the exit code with which
        this worker is to end. Raises HvdtrainError: the launcher is gone."""
        self._socket.sendall(line_of({"ready": int(os.environ.get(WORLD_VARIABLE, 0))}))
        order = self._orders.get()
        if order is None:
            raise HvdtrainError(
                "The launcher has closed its connection to this worker.",
                "Nobody can tell it with whom to go on.",
                "look for the launcher's own message.",
            )
        if "leave" in order:
            return int(order["leave"])
        for name, value in order["variables"].items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        return None

    def _say(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the launcher is gone: `next_world` says so
            self._socket.sendall(line_of(message))

    def _listen(self) -> None:
        reader = LineReader()
        try:
            while data := self._socket.recv(_READ_BYTES):
                for order in reader.feed(data):
                    self._take(order)
        except (OSError, ValueError):
            pass  # as if it were closed
        self._orders.put(None)

    def _take(self, order: dict[str, Any]) -> None:
        if "change" in order:
            self._wanted = True
        elif "over" in order:
            if str(order["over"]) == os.environ.get(WORLD_VARIABLE):
                self.when_over()
        else:
            self._wanted = False
            self._orders.put(order)


def claim_world_channel() -> WorldChannel | None:
    """This process's channel, where its launcher may change the number of workers; its own commands get none."""
    file = os.environ.pop(CHANNEL_VARIABLE, None)
    return None if file is None else WorldChannel(int(file))
