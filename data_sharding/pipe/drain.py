"""A FIFO emptied in the background into a bounded buffer, so that its writer waits only when the buffer is full."""

from __future__ import annotations

import threading
from collections import deque

from data_sharding.errors import LoaderTimeoutError, PlanError
from data_sharding.pipe.fifo import FifoPass, PassName, Stop

_GRACE_S = 10.0
"""The thread keeps the deadline; this much later the consumer stops trusting the thread."""


class Drain:
    """Takes chunks from a FIFO in a thread of its own, a daemon, until the end, an error, or close().

    Args:
        fifo: read by the thread alone from now on; closed by close().
        stop: what ends its waits.
        buffer_bytes: chunks wait in memory up to this sum, plus one chunk.
        timeout_s: what `fifo` waits for its writer.
    """

    def __init__(self, fifo: FifoPass, name: PassName, stop: Stop, buffer_bytes: int, timeout_s: float) -> None:
        self._fifo, self._name, self._stop = fifo, name, stop
        self._buffer_bytes, self._timeout_s = buffer_bytes, timeout_s
        self._changed = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"pipe-{name.channel}_{name.epoch}", daemon=True)
        self._thread.start()

    def take(self) -> bytes | None:
        """The next chunk; None at the end.

        Raises:
            LoaderTimeoutError: the writer is absent or silent.
            PlanError: closed before.
            BaseException: whatever else ended the thread.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_decided, self._timeout_s + _GRACE_S):
                raise LoaderTimeoutError(
                    f"The thread that reads {self._name.path} ({self._name}) did not answer.",
                    f"It should have had bytes or an error within {self._timeout_s:g} s.",
                    "this machine may be overloaded; allow more time.",
                )
            if self._closed:
                raise PlanError(f"{self._name.path} is closed.", "It delivers nothing more.", "open the next epoch.")
            if self._chunks:
                chunk = self._chunks.popleft()
                self._waiting_bytes -= len(chunk)
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """End the thread and close the FIFO. May be called twice.

        Raises:
            LoaderTimeoutError: the thread did not end.
        """
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._stop.set()
            self._changed.notify_all()
        self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            raise LoaderTimeoutError(
                f"The thread that reads {self._name.path} was still busy {_GRACE_S:g} s after it was told to stop.",
                "Closing the FIFO under it might close another file of the same number.",
                "this machine may be overloaded.",
            )
        self._fifo.close()

    def _is_decided(self) -> bool:
        return bool(self._chunks) or self._ended or self._closed

    def _work(self) -> None:
        try:
            while (chunk := self._fifo.read_chunk()) is not None:
                if not self._put(chunk):
                    return
        except BaseException as error:  # handed to the consumer, whatever it is: a thread must not die unseen
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, chunk: bytes) -> bool:
        """Whether the consumer wants more. No deadline: it waits as long as the consumer's own work lasts."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting_bytes < self._buffer_bytes)
            if not self._closed:
                self._chunks.append(chunk)
                self._waiting_bytes += len(chunk)
                self._changed.notify_all()
            return not self._closed
