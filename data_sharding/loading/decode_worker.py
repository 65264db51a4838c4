"""Main program of a helper process: reads and decodes the batches that its parent asks for.

Run as `python -m data_sharding.loading.decode_worker SOCKET COLUMNS ARENA PARENT`: three inherited descriptors and the
parent's process id. Not by multiprocessing's spawn, which would run the user's script again up to its main guard, and
not by a fork, which a process that has started MPI, CUDA or TensorFlow does not survive.

It ends when its parent closes the socket or dies, even in the middle of a batch.
"""

import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decode, Decoded, read_and_decode
from data_sharding.loading.helper_messages import Arena, Failure, Setup, receive, send
from data_sharding.loading.record_reader import RecordReader

# Between looks at who the parent is: a descendant that the parent forked may hold the socket open after its death.
_PARENT_CHECK_MS: Final = 1000


def main(arguments: Sequence[str]) -> None:
    descriptor, columns, memory, parent = map(int, arguments)
    channel, arena = Connection(descriptor), Arena(memory)
    os.set_inheritable(descriptor, False)
    # Ctrl-C reaches all processes of a terminal, Slurm signals all of a task's; the parent decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(descriptor, parent), daemon=True).start()
    try:
        reading = _open(receive(channel), columns)
        while True:
            answer = _answer(reading, *receive(channel))
            try:
                send(channel, answer, arena)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                send(channel, Failure.of(error), arena)
    except (EOFError, ConnectionError):
        return  # the parent closed the socket: nothing more is wanted


def _open(setup: Setup, columns: int) -> tuple[RecordReader, Decode] | Failure:
    sys.path[:] = setup.import_path
    try:
        return setup.open(columns)
    except Exception as error:  # importing the user's module can raise anything
        refused = PlanError(
            f"A decode process cannot load the decode function: {type(error).__name__}: {error}.",
            "A process loads it by importing its module.",
            "put it into a module that can be imported without side effects, or decode in threads with processes=0.",
        )
        return Failure.of(refused)


def _answer(reading: tuple[RecordReader, Decode] | Failure, *request: object) -> Decoded | Failure:
    if isinstance(reading, Failure):
        return reading
    try:
        return read_and_decode(*reading, *request)  # type: ignore[arg-type]
    except BaseException as error:  # handed to the parent, whatever it is
        return Failure.of(error)


def _end_with_parent(channel: int, parent: int) -> None:
    poller = select.poll()
    poller.register(channel, 0)  # no event asked for leaves those of the other end's going
    while not poller.poll(_PARENT_CHECK_MS) and os.getppid() == parent:
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
