"""One channel of the simulated agent: its FIFOs made, fed and removed one after the other, in a thread."""

from __future__ import annotations

import contextlib
import os
import random
import select
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from data_sharding.errors import LoaderTimeoutError, MissingDataError, PlanError
from data_sharding.pipe.fifo import Stop, numbers_of

_CHUNK_BYTES: Final = 2**20
_RELEASE_POLL_S: Final = 0.01
_END_S: Final = 30.0


@dataclass(frozen=True)
class ChannelFeed:
    """What one channel delivers.

    Attributes:
        files: paths, whose contents follow each other without anything between them.
        shuffle: seed of a new order of the files in each epoch; None: the given order in all.
        late_s: seconds that pass before each FIFO appears.
        truncate: bytes after which the writer goes away, in each epoch; None: at the end.
    """

    files: tuple[str, ...]
    shuffle: int | None = None
    late_s: float = 0.0
    truncate: int | None = None

    def order(self, epoch: int) -> list[str]:
        """The files in the order of an epoch."""
        files = list(self.files)
        if self.shuffle is not None:
            random.Random(f"{self.shuffle}:{epoch}").shuffle(files)
        return files


@dataclass(frozen=True)
class Delivery:
    """How one epoch of a channel ended: bytes written, and whether the reader left before the end."""

    epoch: int
    bytes: int
    closed_early: bool


class FeedThread(threading.Thread):
    """Feeds `<base>/<name>_0` to `<name>_<epochs - 1>`. Begins with start(); see `end` for how to stop it.

    `deliveries` has an entry for each epoch that was fed; `error` is what ended the thread otherwise.
    """

    def __init__(self, base: Path, name: str, feed: ChannelFeed, epochs: int) -> None:
        super().__init__(name=f"feed-{name}", daemon=True)
        self.deliveries: list[Delivery] = []
        self.error: BaseException | None = None
        self._base, self._channel, self._feed, self._epochs = base, name, feed, epochs
        self._stop_switch = Stop()
        self._epoch = 0

    def require_free(self) -> None:
        """Raise `PlanError` if some FIFO of this channel is there already, of whatever epoch."""
        numbers = numbers_of(self._base, self._channel)
        if numbers:
            raise _exists_already(self._path(numbers[0]), len(numbers) - 1)

    def run(self) -> None:
        """Feed all epochs."""
        try:
            for epoch in range(self._epochs):
                self._epoch = epoch
                if self._stop_switch.wait(self._feed.late_s):
                    return
                with _fifo(self._path(epoch)) as path:
                    self._deliver(path, epoch)
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
        """Stop feeding, wherever it is, and wait until the FIFO is gone.

        Raises:
            LoaderTimeoutError: a file cannot be read to the end of a chunk.
        """
        self._stop_switch.set()
        deadline = time.monotonic() + _END_S
        while self.is_alive():
            if time.monotonic() > deadline:
                raise LoaderTimeoutError(
                    f"The feed of channel {self._channel} is still busy {_END_S:g} s after it was told to stop.",
                    "Its files cannot be read.",
                    "check the storage.",
                )
            _release_writer(self._path(self._epoch))
            self.join(_RELEASE_POLL_S)

    def _path(self, epoch: int) -> Path:
        return self._base / f"{self._channel}_{epoch}"

    def _deliver(self, path: Path, epoch: int) -> None:
        # A blocking open, as the agent's: it notices a reader that comes and leaves between two looks.
        writer = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        written = 0
        closed_early = False
        try:
            os.set_blocking(writer, False)
            for chunk in self._chunks(epoch):
                written += self._write(writer, chunk)
        except BrokenPipeError:
            closed_early = True
        finally:
            os.close(writer)
        if not self._stop_switch.wait(0):
            self.deliveries.append(Delivery(epoch, written, closed_early))

    def _chunks(self, epoch: int) -> Iterator[bytes]:
        left = self._feed.truncate
        for name in self._feed.order(epoch):
            with open(name, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)):
                    yield chunk
                    left = None if left is None else left - len(chunk)

    def _write(self, writer: int, chunk: bytes) -> int:
        view = memoryview(chunk)
        poll = select.poll()
        poll.register(writer, select.POLLOUT)
        poll.register(self._stop_switch.fileno(), select.POLLIN)
        done = 0
        while done < len(view):
            if self._stop_switch.fileno() in dict(poll.poll()):
                raise BrokenPipeError("told to stop")
            # Between poll and write only this thread fills the pipe, so that some room is left.
            done += os.write(writer, view[done:])
        return done


@contextlib.contextmanager
def _fifo(path: Path) -> Iterator[Path]:
    try:
        os.mkfifo(path)
    except FileExistsError as error:
        raise _exists_already(path) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _exists_already(path: Path, others: int = 0) -> PlanError:
    more = f", and {others} more of its channel" if others else ""
    return PlanError(
        f"{path} exists already{more}.",
        "A FIFO that another agent feeds, or that one left behind, must not get a second writer.",
        "end that agent, remove what it left, or use another folder.",
    )


def _release_writer(path: Path) -> None:
    """End a blocking open for writing by being its reader for a moment."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        return
