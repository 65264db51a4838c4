"""Cutting a stream of bytes into records, wherever the chunks that arrive happen to end."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from data_sharding.errors import PlanError

Framing = Literal["tfrecord", "recordio", "recordio-sagemaker"]


class FrameError(Exception):
    """The bytes are no sound sequence of frames. The reader, which knows whose they are, turns it into its own error.

    Args:
        what: one sentence.
        offset: byte of the stream at which the frame in question begins.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset


class FrameParser(Protocol):
    """Sans-I/O parser of one stream."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the records that `chunk` completes.

        Raises:
            FrameError: framing or checksum is wrong.
        """
        ...

    def finish(self) -> None:
        """The stream has ended.

        Raises:
            FrameError: inside a record.
        """
        ...


class Carry:
    """The bytes of a frame that is not whole yet.

    They are joined with later ones only once the frame can be whole, so that a record larger than many chunks is copied
    once, not once a chunk.
    """

    def __init__(self, header_bytes: int) -> None:
        self._header_bytes = header_bytes
        self._parts: list[bytes] = []
        self._need = header_bytes
        self.size = 0
        self.offset = 0
        """Byte of the stream at which the carried ones begin."""

    def join(self, chunk: bytes) -> bytes | None:
        """All bytes at hand, or None while they cannot hold a whole frame."""
        self._parts.append(chunk)
        self.size += len(chunk)
        if self.size < self._need:
            return None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def keep(self, data: bytes, start: int, need: int | None = None) -> None:
        """Carry `data[start:]`, a frame of `need` bytes (None: its header is not whole yet)."""
        rest = data[start:]
        self._parts = [rest] if rest else []
        self._need = self._header_bytes if need is None else need
        self.size = len(rest)
        self.offset += start


def parser_for(framing: Framing) -> FrameParser:
    """A new parser: "tfrecord", "recordio" as dmlc and MXNet write it, or as SageMaker reads it.

    Raises:
        PlanError: no such framing.
    """
    from data_sharding.pipe.recordio_frames import RecordIOFrames
    from data_sharding.pipe.tfrecord_frames import TFRecordFrames

    if framing == "tfrecord":
        return TFRecordFrames()
    if framing in ("recordio", "recordio-sagemaker"):
        return RecordIOFrames("dmlc" if framing == "recordio" else "sagemaker")
    raise PlanError(
        f"The framing {framing!r} was asked for.",
        "A pipe's records can only be told apart by a framing that is known.",
        f"choose {', '.join(get_args(Framing))}.",
    )
