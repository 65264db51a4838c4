"""One channel of one worker: its FIFOs one after the other, each read once, from front to back."""

import os
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path

from data_sharding.errors import ChangedDataError, CorruptRecordError, PlanError
from data_sharding.formats.record_format import FrameError
from data_sharding.pipe.fifo import Fifo, PassName, await_fifo
from data_sharding.pipe.locks import ChannelLock
from data_sharding.pipe.parsers import FrameParser, Framing, parser_for


class PipeReader(AbstractContextManager["PipeReader"]):
    """The right to read a channel, and the count of its epochs; a context manager.

    Holds a lock on the channel from construction to close(), so that a second reader is refused at once. Epochs are
    read in sequence, each through `open()`; every process counts its own.

    Args:
        base: folder in which the FIFOs `<channel>_<epoch>` appear.
        rank: whose channel it is, as errors say.
        timeout_s: longest wait for the FIFO, for its writer, and for its next bytes, each, in seconds.
        buffer_bytes: what may wait in memory, read and not yet asked for.

    Errors as `ChannelLock`.
    """

    def __init__(
        self,
        base: str | Path,
        channel: str,
        *,
        rank: int = 0,
        framing: Framing = "tfrecord",
        timeout_s: float = 300.0,
        buffer_bytes: int = 2**25,
    ) -> None:
        self._base, self.channel, self._rank = Path(base), channel, rank
        self._framing: Framing = framing
        self._timeout_s, self._buffer_bytes = timeout_s, buffer_bytes
        self._process = os.getpid()
        self._pass: PipePass | None = None
        self.epoch = 0
        """Number of the FIFO that is open, or else of the next to be opened."""
        parser_for(framing)
        self._lock = ChannelLock(self._base, channel, f"rank {rank}")

    def open(self, expected_records: int | None = None) -> "PipePass":
        """Open this epoch's FIFO once it exists; its writer may come later still.

        Closing the pass, early or not, moves on to the next epoch. `expected_records` must arrive, if that is known,
        and then the end. Raises LoaderTimeoutError, MissingDataError or PlanError.
        """
        self.check_usable()
        if self._pass is not None and not self._pass.closed:
            fact = f"Epoch {self._pass.name.epoch} of channel {self.channel} is still open."
            raise PlanError(fact, "The FIFOs of a channel come one after the other.", "close it first.")
        name = PassName(self._base, self.channel, self.epoch, self._rank)
        await_fifo(name, self._timeout_s)
        fifo = Fifo(name, self._timeout_s, self._buffer_bytes)
        self._pass = PipePass(self, fifo, parser_for(self._framing), expected_records)
        return self._pass

    def close(self) -> None:
        """Close the open pass, if any, and let others have the channel. May be called twice."""
        if self._process != os.getpid():
            return
        if self._pass is not None:
            self._pass.close()
        self._lock.release()
        self._process = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_usable(self) -> None:
        """Raise `PlanError` if it is closed, or this is a forked child."""
        if self._process == -1:
            fact = f"The reader of channel {self.channel} is closed."
            raise PlanError(fact, "Its lock is given up.", "make another reader.")
        if self._process != os.getpid():
            raise PlanError(
                f"Channel {self.channel} was opened by process {self._process} and is used in process {os.getpid()}, "
                "forked from it.",
                "Two readers of one FIFO would each get torn records.",
                "read the channel in the worker itself; it is drained in a background thread anyway.",
            )


class PipePass(AbstractContextManager["PipePass"]):
    """The records of one FIFO, in order; a context manager. Made by `PipeReader.open`."""

    def __init__(self, reader: PipeReader, fifo: Fifo, parser: FrameParser, expected_records: int | None) -> None:
        self.name, self.closed, self.expected_records = fifo.name, False, expected_records
        self._reader, self._fifo, self._parser = reader, fifo, parser
        self._process = os.getpid()
        self._ready: deque[bytes] = deque()
        self._ended = False
        self._bytes = self._records = 0

    def read(self, count: int) -> list[bytes]:
        """The next `count` payloads; fewer, down to none, only at the end. The last expected one comes with the end.

        Raises LoaderTimeoutError, CorruptRecordError, ChangedDataError or PlanError.
        """
        self._reader.check_usable()
        is_last = self._records - len(self._ready) + count == self.expected_records
        while len(self._ready) < count + is_last and not self._ended:
            self._take_chunk()
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def await_data(self) -> None:
        """Return once a byte, or the end, has come; errors as `read`.

        A pass that is to be closed early waits for it: else its writer, who waits for a reader, may not notice one.
        """
        if not self._bytes and not self._ended:
            self._take_chunk()

    def close(self) -> None:
        """Close the FIFO, at the end or before (its writer then gets EPIPE). May be called twice."""
        if self.closed or self._process != os.getpid():
            return
        self.closed = True
        self._fifo.close()
        self._reader.epoch = self.name.epoch + 1

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_chunk(self) -> None:
        try:
            chunk = self._fifo.take()
            if chunk is None:
                self._parser.finish()
                self._ended = True
            self._bytes += len(chunk or b"")
            records = self._parser.feed(chunk) if chunk else []
        except FrameError as error:
            raise CorruptRecordError(
                f"{self._where()} cannot be read on from byte {error.offset:,}: {error.what}.",
                "What follows cannot be told apart, and leaving it out would leave this rank without data.",
                "check the objects of this channel, and that all of them have the framing that the plan names.",
                path=str(self.name.path),
                offset=error.offset,
            ) from error
        self._records += len(records)
        self._ready.extend(records)
        expected = self.expected_records
        if expected is not None and (self._records > expected or (self._ended and self._records != expected)):
            so_far = " or more" if not self._ended else ""
            raise ChangedDataError(
                f"{self._where()} delivered {self._records:,} records{so_far} where {expected:,} were expected.",
                "Steps are planned from the counts, so that all ranks have as many.",
                "make the plan again from the data as they are now, or look for an agent that ended early.",
            )

    def _where(self) -> str:
        return f"{self.name.path} ({self.name}; {self._bytes:,} bytes and {self._records:,} records so far)"
