"""Helper processes that read and decode batches, for decoders that hold Python's lock."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.errors import PlanError, ShardingError
from data_sharding.loading.decoding import Decode, Decoded
from data_sharding.loading.messages import Arena, Failure, Setup, receive, send
from data_sharding.loading.record_reader import RecordReader
from data_sharding.sample_random import SampleRandom

_LAUNCHER_PREFIXES: Final = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MV2_COMM_", "HOROVOD_")
"""Variables by which Open MPI, PMIx, PRRTE, MPICH, MVAPICH2 and Horovod tell a process which rank it is. A helper that
inherited them would join the job as its parent's double as soon as something it imports initialises MPI."""

_ALIVE_CHECK_MS: Final = 1000
_END_S: Final = 1.0
_KILL_S: Final = 10.0


@final
class DecodeProcesses:
    """N processes that each read and decode one batch at a time. Safe to use from many threads; a context manager.

    They can serve any number of loaders of the same catalog, so that one set lasts for all epochs. A process starts
    when it is first needed, and is started again after it has died. It inherits the environment without what launchers
    set for a rank, and with OMP_NUM_THREADS=1, since the processes are the parallelism. It ends when it is closed, and
    when the process that made it ends in whatever way. Linux only.

    Args:
        reader: its catalog and options are used; each process opens the files for itself.
        decode: importable by its name: a function, or a method of an object that can be pickled. Not defined in the
            script that was started, which no helper runs again.
        processes: how many.

    Raises:
        PlanError: fewer than one process, or the decode function cannot be sent to another process.
    """

    def __init__(self, reader: RecordReader, decode: Decode, processes: int) -> None:
        at_least(1, "processes", processes, "Decoding needs at least one.")
        self.catalog = reader.catalog
        setup, columns = Setup.of(reader, decode)
        self._helpers = [_Helper(setup, columns) for _ in range(processes)]
        self._idle = list(self._helpers)
        self._changed = threading.Condition()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end_all, list(self._helpers), columns)

    def __len__(self) -> int:
        return len(self._helpers)

    def __call__(self, ids: NDArray[np.int64], random: SampleRandom | None) -> Decoded:
        """Read and decode records ids int64[k] in one of the processes, as `read_and_decode` does.

        Raises:
            ShardingError: the process died; names its exit code. Or as `read_and_decode`.
            PlanError: closed.
        """
        helper = self._borrow()
        try:
            answer = helper.ask((ids, random))
        finally:
            with self._changed:
                self._idle.append(helper)
                self._changed.notify()
        if isinstance(answer, Failure):
            raise answer.rebuild()
        assert isinstance(answer, Decoded)
        return answer

    def close(self) -> None:
        """End the processes, in the middle of a batch too. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _borrow(self) -> _Helper:
        with self._changed:
            # No deadline: the caller is a background thread, and whoever waits for its batch has one.
            self._changed.wait_for(lambda: self._closed or self._idle)
            if self._closed:
                raise _closed_error()
            return self._idle.pop()


@final
class _Process:
    """A running helper process, and the ways to it."""

    def __init__(self, columns: int) -> None:
        self.channel, theirs = socket.socketpair()
        self._memory = os.memfd_create("data_sharding-arena")
        self.arena = Arena(self._memory)
        self.greeted = False
        with theirs:
            descriptors = (theirs.fileno(), columns, self._memory)
            arguments = map(str, (*descriptors, os.getpid()))
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", "data_sharding.loading.decode_worker", *arguments],
                pass_fds=descriptors,
                env=_environment(),
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._popen.pid

    def wait_for_reply(self) -> None:
        """Wait until there is something to receive.

        Raises:
            EOFError: the process has died. That closes its socket, unless something that the decode function forked
                holds it open.
        """
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        while not poller.poll(_ALIVE_CHECK_MS):
            if self._popen.poll() is not None:
                raise EOFError("the process died")

    def end(self) -> int:
        """End it, unless it has ended by itself, and return its exit code."""
        # Only shut down: a thread that waits on the descriptor wakes up. `release` closes it.
        self.channel.shutdown(socket.SHUT_RDWR)
        try:
            return self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:  # stopped by a signal, or deep in the kernel
            self._popen.kill()
            return self._popen.wait(_KILL_S)

    def release(self) -> None:
        """Close the descriptors, once nobody waits on them."""
        self.channel.close()
        os.close(self._memory)


@final
class _Helper:
    """The place of one process. `ask` is called by one thread at a time, `end` by any."""

    def __init__(self, setup: Setup, columns: int) -> None:
        self._setup, self._columns = setup, columns
        self._process: _Process | None = None
        self._asking = self._ended = False
        # Reentrant: `end` may run in a garbage collection inside `_begin`.
        self._lock = threading.RLock()

    def ask(self, request: tuple[NDArray[np.int64], SampleRandom | None]) -> Any:
        process = self._begin()
        try:
            if not process.greeted:
                send(process.channel, self._setup)
                process.greeted = True
            send(process.channel, request)
            process.wait_for_reply()
            return receive(process.channel, process.arena)
        except (EOFError, ConnectionError) as error:
            raise self._lost(process) from error
        finally:
            self._finish(process)

    def end(self) -> None:
        """End the process, which may be working. May be called twice."""
        with self._lock:
            self._ended = True
            process, self._process = self._process, None
            if process is not None:
                process.end()
                if not self._asking:
                    process.release()

    def _begin(self) -> _Process:
        with self._lock:
            if self._ended:
                raise _closed_error()
            if self._process is None:
                self._process = _Process(self._columns)
            self._asking = True
            return self._process

    def _finish(self, process: _Process) -> None:
        with self._lock:
            self._asking = False
            if self._process is not process:
                process.release()

    def _lost(self, process: _Process) -> ShardingError:
        with self._lock:
            if self._ended:
                return _closed_error()
            self._process = None
            code = process.end()
        named = {known.value: known.name for known in signal.Signals}  # of the real-time signals, two have names
        name = f" ({named.get(-code, 'a real-time signal')})" if code < 0 else ""
        return ShardingError(
            f"Decode process {process.pid} ended with exit code {code}{name} while it worked on a batch.",
            "The batch is lost.",
            "use fewer processes if memory ran out; else set processes=0 to see the fault of the decode function.",
        )


def _environment() -> dict[str, str]:
    """Ours, without a rank, and so that this package is found wherever it was imported from."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_PREFIXES)}
    import_path = [str(Path(__file__).parents[2]), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(import_path), "OMP_NUM_THREADS": "1"}


def _end_all(helpers: list[_Helper], columns: int) -> None:
    for helper in helpers:
        helper.end()
    os.close(columns)


def _closed_error() -> PlanError:
    return PlanError("The decode processes are closed.", "They make no more batches.", "make others.")
