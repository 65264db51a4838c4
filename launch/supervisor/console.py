"""What workers write, put together on one terminal: rank 0 as it comes, every other rank's lines behind its number."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import final

from hvdtrain.errors import HvdtrainError
from launch.processes.crew import ERR, OUT

_HELD_BYTES = 2**16
_LINE_BYTES = 2**16  # a line longer than this is passed on in pieces


@final
class Console:
    """Standard output and standard error of the launcher.

    Rank 0's bytes pass unchanged, so that its progress bar redraws itself; of a line without one, when it is complete.
    Other ranks' lines pass whole, as `[1] …`.
    While `holding`, they are kept instead: until all ranks have met, ranks tend to fail alike, and one voice suffices.
    """

    def __init__(self) -> None:
        self.holding = True
        self._unfinished = False  # rank 0's bar stands on the cursor's line
        self._rest: dict[tuple[int, int], bytes] = defaultdict(bytes)
        self._held: dict[int, list[tuple[int, bytes]]] = defaultdict(list)

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on what `rank` wrote to `stream` (OUT or ERR)."""
        if rank == 0:
            self._pass_unchanged(stream, data)
            return
        *lines, rest = (self._rest[rank, stream] + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rest[rank, stream] = rest
        self._lines(rank, stream, lines)

    def finish(self, rank: int) -> None:
        """The rank has ended: its last line may lack an end."""
        for stream in (OUT, ERR):
            rest = self._rest.pop((rank, stream), b"")
            if rest and rank == 0:
                self._write_some(stream, rest)
            elif rest:
                self._lines(rank, stream, [rest])

    def release(self, rank: int) -> None:
        """Print what was held of `rank`."""
        for stream, text in self._held.pop(rank, []):
            self._whole_lines(stream, text)

    def release_all(self) -> None:
        """Hold no longer."""
        self.holding = False
        for rank in sorted(self._held):
            self.release(rank)

    def drop_held(self) -> None:
        """Forget what is held: another rank has said the same."""
        self._held.clear()

    def say(self, text: str) -> None:
        """The launcher's own words, on standard error."""
        self._whole_lines(ERR, text.encode(errors="replace") + b"\n")

    def _pass_unchanged(self, stream: int, data: bytes) -> None:
        data = self._rest.pop((0, stream), b"") + data
        end = data.rfind(b"\n") + 1
        if b"\r" not in data[end:] and len(data) - end < _LINE_BYTES:
            data, self._rest[0, stream] = data[:end], data[end:]
        self._write_some(stream, data)

    def _write_some(self, stream: int, data: bytes) -> None:
        if data:
            self._write(stream, data)
            self._unfinished = not data.endswith(b"\n")

    def _lines(self, rank: int, stream: int, lines: list[bytes]) -> None:
        text = b"".join(b"[%d] %s\n" % (rank, line.rstrip(b"\r").rpartition(b"\r")[2]) for line in lines)
        if not text:
            return
        if not self.holding:
            self._whole_lines(stream, text)
            return
        self._held[rank].append((stream, text))
        if sum(len(part) for _, part in self._held[rank]) > _HELD_BYTES:
            self.release(rank)

    def _whole_lines(self, stream: int, text: bytes) -> None:
        if self._unfinished:
            text = b"\n" + text
            self._unfinished = False
        self._write(stream, text)

    def _write(self, stream: int, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(stream, data) :]
        except OSError as error:
            raise HvdtrainError(
                f"The launcher's output cannot be written: {error.strerror or error}.",
                "Nobody would hear what goes wrong, so the workers were stopped.",
                "keep the reading end open, or send the output to a file.",
            ) from error
