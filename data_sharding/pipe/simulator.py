"""A local agent that feeds FIFOs from files, with the semantics of SageMaker's, so that pipe mode runs without a cloud.

Each channel has a thread of its own and its FIFOs come in sequence: `<channel>_1` appears when `<channel>_0` has been
read to its end or closed early. A reader that leaves (EPIPE) is no error. FIFOs may come late, streams may break off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from data_sharding.errors import LoaderTimeoutError, MissingDataError, PlanError
from data_sharding.pipe.feed import ChannelFeed, Delivery, FeedThread
from data_sharding.pipe.pipe_plan import check_channel_name
from data_sharding.pipe.pipe_reader import await_pipe


class PipeSimulator:
    """Feeds channels from a `with` block's beginning to its end, and leaves no FIFO behind.

    Args:
        base: folder for the FIFOs; made if need be.
        channels: what each delivers, by name.
        epochs: FIFOs a channel.

    Raises:
        PlanError: no channel, a name that is not allowed, or fewer than one epoch.
        MissingDataError: a file does not exist.
    """

    def __init__(self, base: str | Path, channels: Mapping[str, ChannelFeed], epochs: int) -> None:
        _check(channels, epochs)
        self._base = Path(base)
        self._threads = {name: FeedThread(self._base, name, feed, epochs) for name, feed in channels.items()}

    def __enter__(self) -> Self:
        """Begin to feed.

        Raises:
            PlanError: a FIFO of one of the channels is there already, of whatever epoch.
            MissingDataError: the folder cannot be made.
        """
        try:
            self._base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MissingDataError(
                f"The folder {self._base} cannot be made: {error.strerror}.",
                "FIFOs are to appear in it.",
                "choose another folder.",
            ) from error
        for thread in self._threads.values():
            thread.require_free()
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.raise_errors()

    def await_fifos(self, timeout_s: float) -> None:
        """Return when the first FIFO of every channel exists, for readers that cannot wait for it themselves.

        Raises:
            LoaderTimeoutError: they did not appear within `timeout_s` seconds.
        """
        for name in self._threads:
            await_pipe(self._base, name, 0, rank=0, timeout_s=timeout_s)

    def stop(self) -> None:
        """End all channels now, wherever they are, and remove their FIFOs. May be called twice."""
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.end()

    def is_feeding(self) -> bool:
        """Whether some channel has epochs left."""
        return any(thread.is_alive() for thread in self._threads.values())

    def join(self, timeout_s: float) -> None:
        """Return when all epochs of all channels were taken.

        Raises:
            LoaderTimeoutError: some were not within `timeout_s` seconds.
            PlanError, MissingDataError: what ended a channel's thread.
        """
        end = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        self.raise_errors()
        waiting = [name for name, thread in self._threads.items() if thread.is_alive()]
        if waiting:
            raise LoaderTimeoutError(
                f"{', '.join(waiting)} had no reader for some epoch within {timeout_s:g} s.",
                "The agent cannot end before all is read or closed.",
                "start a reader for each channel.",
            )

    def deliveries(self) -> dict[str, list[Delivery]]:
        """What has been delivered so far, by channel."""
        return {name: list(thread.deliveries) for name, thread in self._threads.items()}

    def raise_errors(self) -> None:
        """Raise the first error that ended a channel's thread, if there is one."""
        for thread in self._threads.values():
            if thread.error is not None:
                raise thread.error


def _check(channels: Mapping[str, ChannelFeed], epochs: int) -> None:
    if not channels or epochs < 1:
        raise PlanError(
            f"{len(channels)} channels were to be fed for {epochs} epochs.",
            "That would feed nothing.",
            "give one channel or more, and one epoch or more.",
        )
    for name, feed in channels.items():
        check_channel_name(name)
        missing = [file for file in feed.files if not Path(file).is_file()]
        if missing:
            raise MissingDataError(
                f"{missing[0]}, of channel {name}, does not exist.", "It cannot be fed to a pipe.", "check the path."
            )
