"""hashes.jsonl: checksums of the weights every so many updates (--hash-every), by which runs are compared later."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TextIO

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.files import open_lines
from hvdtrain.run.sinks.sink import SinkContext


def open_sink(context: SinkContext, stack: ExitStack) -> "HashFile | None":
    if not context.topology.is_root or context.config.hash_every is None:
        return None
    return HashFile(stack.enter_context(open_lines(context.folder.hashes)))


class HashFile:
    """Appends a line with the names of all weights, and then one of their checksums for each event; rank 0 only.

    A resumed run appends; the last line of a step counts. 8 bytes for each weight's array and for each virtual worker,
    and about 60 for the rest.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._names: list[str] = []

    def __call__(self, event: Event) -> None:
        match event:
            case events.WeightsHashed(step=step, checksums=checksums, gradients=gradients):
                if list(checksums) != self._names:
                    self._names = list(checksums)
                    self._write({"names": self._names})
                of_workers = {"gradients": _in_hexadecimal(gradients)} if gradients else {}
                self._write({"step": step, "checksums": _in_hexadecimal(checksums.values()), **of_workers})

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _in_hexadecimal(checksums: Iterable[int]) -> str:
    return "".join(f"{value:08x}" for value in checksums)
