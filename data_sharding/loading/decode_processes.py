"""Helper processes that read and decode batches, for decoders that hold Python's GIL."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.errors import PlanError, ShardingError
from data_sharding.loading.decode_worker import Arena, Failure, Setup, receive, send
from data_sharding.loading.decoding import Decode, Decoded
from data_sharding.reading.record_reader import RecordReader
from data_sharding.sample_random import SampleRandom

_LAUNCHER_PREFIXES: Final = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MV2_COMM_", "HOROVOD_")
"""Variables by which Open MPI, PMIx, PRRTE, MPICH, MVAPICH2 and Horovod tell a process which rank it is. A helper that
inherited them would join the job as its parent's double as soon as something it imports initialises MPI."""

_MAIN: Final = "from data_sharding.loading.decode_worker import main; main()"
_ALIVE_CHECK_S: Final = 1.0
_END_S: Final = 1.0
_KILL_S: Final = 10.0


Request = tuple[NDArray[np.int64], SampleRandom | None, int | None, list[bytes] | None]
"""Arguments of a `DecodeProcesses`."""


class DecodeProcesses(AbstractContextManager["DecodeProcesses"]):
    """N processes that each read and decode one batch at a time. Safe to use from many threads; a context manager.

    They can serve any number of loaders of the same catalog, so that one set lasts for all epochs. A process starts
    when it is first needed, and is started again after it has died. It inherits the environment without what launchers
    set for a rank, and with OMP_NUM_THREADS=1. It ends when it is closed, and when the process that made it ends in
    whatever way. Linux only.

    Args:
        reader: its catalog and options are used; each process opens the files for itself. What is read by blocks is
            read by this reader, and sent.
        decode: a function, or a method of an object, that can be pickled. What the started script defines, or a
            notebook, needs cloudpickle.

    Raises PlanError (an argument is refused).
    """

    def __init__(self, reader: RecordReader, decode: Decode, processes: int) -> None:
        at_least(1, "processes", processes, "Decoding needs at least one.")
        self.catalog, self._reader = reader.catalog, reader
        self._pool = _Pool(*Setup.of(reader, decode), processes)
        self._finalizer = weakref.finalize(self, self._pool.close)

    def __len__(self) -> int:
        return self._pool.size

    def __call__(
        self,
        ids: NDArray[np.int64],
        random: SampleRandom | None,
        longest: int | None = None,
        ranges: NDArray[np.int64] | None = None,
    ) -> Decoded:
        """As `read_and_decode`, in one of the processes. ShardingError if that died, PlanError if all are closed.

        What is read by blocks is read here: each process would read and keep all blocks otherwise.
        """
        by_blocks = ranges is not None or self._reader.keeps_groups
        answer = self._pool.ask((ids, random, longest, self._reader.spans(ids, ranges) if by_blocks else None))
        if isinstance(answer, Failure):
            raise answer.rebuild()
        assert isinstance(answer, Decoded)
        return answer

    def close(self) -> None:
        """End the processes, in the middle of a batch too. May be called twice."""
        self._finalizer()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pool:
    """The processes of a `DecodeProcesses`, which can be collected before they have ended."""

    def __init__(self, setup: Setup, columns: int, size: int) -> None:
        self._setup, self._columns, self.size = setup, columns, size
        self._idle: list[_Process | None] = [None] * size  # None: still to be started
        self._busy: set[_Process] = set()
        # Reentrant: `close` may run in a garbage collection inside any of the methods.
        self._changed = threading.Condition()
        self._closed = False

    def ask(self, request: Request) -> Any:
        process = self._borrow()
        dead = False
        try:
            return process.ask(self._setup, request)
        except (EOFError, ConnectionError) as error:
            dead = True
            raise self._lost(process) from error
        finally:
            self._give_back(process, dead)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for process in self._busy:
                process.end()
            for idle in filter(None, self._idle):
                idle.end()
                idle.release()
        os.close(self._columns)

    def _borrow(self) -> "_Process":
        with self._changed:
            # No deadline: the caller is a background thread, and whoever waits for its batch has one.
            self._changed.wait_for(lambda: self._closed or self._idle)
            if self._closed:
                raise _closed_error()
            process = self._idle[-1] or _Process(self._columns)
            self._idle.pop()
            self._busy.add(process)
            return process

    def _give_back(self, process: "_Process", dead: bool) -> None:
        with self._changed:
            self._busy.discard(process)
            if self._closed and not dead:
                process.end()
            if self._closed or dead:
                process.release()
            self._idle.append(None if self._closed or dead else process)
            self._changed.notify()

    def _lost(self, process: "_Process") -> ShardingError:
        with self._changed:
            if self._closed:
                return _closed_error()
            code = process.end()
        named = {known.value: known.name for known in signal.Signals}  # of the real-time signals, two have names
        name = f" ({named.get(-code, 'a real-time signal')})" if code < 0 else ""
        return ShardingError(
            f"Decode process {process.pid} ended with exit code {code}{name} while it worked on a batch.",
            "The batch is lost.",
            "use fewer processes if memory ran out; else set processes=0 to see the fault of the decode function.",
        )


class _Process:
    def __init__(self, columns: int) -> None:
        self._channel, theirs = multiprocessing.Pipe()
        self._memory = os.memfd_create("data_sharding-arena")
        self._arena = Arena(self._memory)
        self._greeted = False
        with theirs:
            descriptors = (theirs.fileno(), columns, self._memory)
            arguments = map(str, (*descriptors, os.getpid()))
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", _MAIN, *arguments],
                pass_fds=descriptors,
                env=_environment(),
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._popen.pid

    def ask(self, setup: Setup, request: Request) -> Any:
        """Send a request and return the answer. Raises EOFError or ConnectionError if the process has died."""
        if not self._greeted:
            send(self._channel, setup)
            self._greeted = True
        send(self._channel, request)
        # Its death closes its socket, unless something that the decode function forked holds it open.
        while not self._channel.poll(_ALIVE_CHECK_S):
            if self._popen.poll() is not None:
                raise EOFError("the process died")
        return receive(self._channel, self._arena)

    def end(self) -> int:
        """End it, unless it has ended by itself, and return its exit code."""
        # Only shut down: a thread that waits on the descriptor wakes up. `release` closes it.
        with socket.socket(fileno=os.dup(self._channel.fileno())) as channel:
            channel.shutdown(socket.SHUT_RDWR)
        try:
            return self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:  # stopped by a signal, or deep in the kernel
            self._popen.kill()
            return self._popen.wait(_KILL_S)

    def release(self) -> None:
        """Close the descriptors, once nobody waits on them."""
        self._channel.close()
        os.close(self._memory)


def _environment() -> dict[str, str]:
    """Ours, without a rank, and so that this package is found wherever it was imported from."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_PREFIXES)}
    import_path = [str(Path(__file__).parents[2]), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(import_path), "OMP_NUM_THREADS": "1"}


def _closed_error() -> PlanError:
    return PlanError("The decode processes are closed.", "They make no more batches.", "make others.")
