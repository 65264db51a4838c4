"""A local agent that feeds FIFOs from files, with the semantics of SageMaker's, so that pipe mode runs without a cloud.

Each channel has a thread of its own and its FIFOs come in sequence: `<channel>_1` appears when `<channel>_0` has been
read to its end or closed early. A reader may leave (EPIPE). FIFOs may come late, streams may break off.
"""

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from data_sharding.errors import LoaderTimeoutError, MissingDataError, PlanError
from data_sharding.pipe.fifo import numbers_of
from data_sharding.pipe.locks import StopEvent
from data_sharding.pipe.pipe_plan import check_channel_name

_CHUNK_BYTES: Final = 2**20
_RELEASE_POLL_S: Final = 0.01
_END_S: Final = 30.0


@dataclass(frozen=True)
class ChannelFeed:
    """What one channel delivers."""

    files: tuple[str, ...]  # paths, whose contents follow each other without anything between them
    shuffle: int | None = None  # seed of a new order of the files in each epoch; None: the given order in all
    late_s: float = 0.0  # seconds that pass before each FIFO appears
    truncate: int | None = None  # bytes after which the writer goes away, in each epoch; None: at the end

    def chunks(self, epoch: int) -> Iterator[bytes]:
        left, files = self.truncate, list(self.files)
        if self.shuffle is not None:
            random.Random(f"{self.shuffle}:{epoch}").shuffle(files)
        for name in files:
            with open(name, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)):
                    yield chunk
                    left = None if left is None else left - len(chunk)


@dataclass(frozen=True)
class Delivery:
    """How one epoch of a channel ended: bytes written, and whether the reader left before the end."""

    epoch: int
    bytes: int
    closed_early: bool


class PipeSimulator:
    """Feeds channels from a `with` block's beginning to its end, with a FIFO an epoch, and leaves no FIFO behind.

    Raises PlanError or MissingDataError.
    """

    def __init__(self, base: str | Path, channels: Mapping[str, ChannelFeed], epochs: int) -> None:
        if not channels or epochs < 1:
            fact = f"{len(channels)} channels were to be fed for {epochs} epochs."
            raise PlanError(fact, "That would feed nothing.", "give one channel or more, and one epoch or more.")
        for name, feed in channels.items():
            check_channel_name(name)
            missing = [file for file in feed.files if not Path(file).is_file()]
            if missing:
                raise MissingDataError(
                    f"{missing[0]}, of channel {name}, does not exist.",
                    "It cannot be fed to a pipe.",
                    "check the path.",
                )
        self._base = Path(base)
        self._threads = {name: _ChannelThread(self._base, name, feed, epochs) for name, feed in channels.items()}

    def __enter__(self) -> Self:
        try:
            self._base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fact = f"The folder {self._base} cannot be made: {error.strerror}."
            raise MissingDataError(fact, "It is for the FIFOs.", "choose another.") from error
        for name in self._threads:
            if numbers := numbers_of(self._base, name):
                raise _exists_already(self._base / f"{name}_{numbers[0]}", len(numbers) - 1)
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None:
            self.raise_errors()

    def stop(self) -> None:
        """End all channels now, wherever they are, and remove their FIFOs. May be called twice."""
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.end()

    def is_feeding(self) -> bool:
        return any(thread.is_alive() for thread in self._threads.values())

    def deliveries(self) -> dict[str, list[Delivery]]:
        """What has been delivered so far, by channel."""
        return {name: list(thread.deliveries) for name, thread in self._threads.items()}

    def raise_errors(self) -> None:
        """Raise the first error that ended a channel's thread, if there is one."""
        for error in filter(None, (thread.error for thread in self._threads.values())):
            raise error


class _ChannelThread(threading.Thread):
    """Feeds `<base>/<name>_0` to `<name>_<epochs - 1>`; `error` is what ended it early."""

    def __init__(self, base: Path, name: str, feed: ChannelFeed, epochs: int) -> None:
        super().__init__(name=f"feed-{name}", daemon=True)
        self.deliveries: list[Delivery] = []
        self.error: BaseException | None = None
        self._base, self._channel, self._feed, self._epochs = base, name, feed, epochs
        self._stop_switch = StopEvent()
        self._path = base / f"{name}_0"

    def run(self) -> None:
        try:
            for epoch in range(self._epochs):
                self._path = self._base / f"{self._channel}_{epoch}"
                if self._stop_switch.wait(self._feed.late_s):
                    return
                try:
                    os.mkfifo(self._path)
                except FileExistsError as error:
                    raise _exists_already(self._path) from error
                try:
                    self._deliver(epoch)
                finally:
                    self._path.unlink(missing_ok=True)
        except OSError as error:
            self.error = MissingDataError(
                f"Channel {self._channel} cannot be fed: {error}.",
                "Its reader would wait for the rest.",
                "check its files, and that FIFOs can be made in the folder.",
            )
            self.error.__cause__ = error
        except BaseException as error:  # shown by whoever waits for the thread
            self.error = error

    def end(self) -> None:
        """Stop feeding, wherever it is, and wait until the FIFO is gone; LoaderTimeoutError if a read hangs."""
        self._stop_switch.set()
        deadline = time.monotonic() + _END_S
        while self.is_alive():
            if time.monotonic() > deadline:
                fact = f"The feed of channel {self._channel} is still busy {_END_S:g} s after it was told to stop."
                raise LoaderTimeoutError(fact, "Its files cannot be read.", "check the storage.")
            # To be its reader for a moment ends a blocking open for writing.
            with contextlib.suppress(FileNotFoundError):
                if self._path.is_fifo():
                    os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
            self.join(_RELEASE_POLL_S)

    def _deliver(self, epoch: int) -> None:
        # A blocking open, as the agent's: it notices a reader that comes and leaves between two looks.
        writer = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        written, closed_early = 0, False
        try:
            os.set_blocking(writer, False)
            for chunk in self._feed.chunks(epoch):
                written += self._write(writer, chunk)
        except BrokenPipeError:
            closed_early = True
        finally:
            os.close(writer)
        if not self._stop_switch.wait(0):
            self.deliveries.append(Delivery(epoch, written, closed_early))

    def _write(self, writer: int, chunk: bytes) -> int:
        poll, done = select.poll(), 0
        poll.register(writer, select.POLLOUT)
        poll.register(self._stop_switch.fileno(), select.POLLIN)
        while done < len(chunk):
            if self._stop_switch.fileno() in dict(poll.poll()):
                raise BrokenPipeError("told to stop")
            # Between poll and write only this thread fills the pipe, so that some room is left.
            done += os.write(writer, memoryview(chunk)[done:])
        return done


def _exists_already(path: Path, others: int = 0) -> PlanError:
    more = f", and {others} more of its channel" if others else ""
    fact = f"{path} exists already{more}."
    conflict = "A FIFO that another agent feeds, or that one left behind, must not get a second writer."
    return PlanError(fact, conflict, "end that agent, remove what it left, or use another folder.")
