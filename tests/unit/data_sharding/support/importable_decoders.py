"""Decode functions that other processes can import by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

from data_sharding import ExampleError, RecordBatch

WAIT_S = 60.0


def contents(records: RecordBatch) -> dict[str, Any]:
    """Arrays of several types and orders that say what was read and which draws belong to it."""
    lengths = np.array([len(payload) for payload in records])
    table = np.zeros((len(records), 8), np.uint8)
    for row, payload in enumerate(records):
        start = payload[:8]
        table[row, : len(start)] = list(start)
    draws = np.zeros((len(records), 2)) if records.random is None else records.random.uniform("x", shape=(2,))
    return {
        "length": lengths,
        "start": np.asfortranarray(table),
        "every_other": table[:, ::2],
        "draws": draws.astype(np.float32),
        "payload": np.array([*records, None], object)[:-1],
    }


def numbers(records: RecordBatch) -> dict[str, Any]:
    """What a tensor can hold of `contents`."""
    return {name: array for name, array in contents(records).items() if name != "payload"}


def slowly(records: RecordBatch) -> dict[str, Any]:
    """`contents`; a thread makes batches that take less time together, and is soon through with an epoch."""
    time.sleep(0.002)
    return contents(records)


def ragged(records: RecordBatch) -> dict[str, Any]:
    """As many columns as the first record has bytes."""
    return {"x": np.zeros((len(records), len(records[0])), np.int64)}


def megabytes(records: RecordBatch) -> dict[str, Any]:
    """As many MiB of one value as the first record has bytes."""
    return {"x": np.full((len(records), len(records[0]), 1 << 20), len(records[0]), np.uint8)}


def process(records: RecordBatch) -> dict[str, Any]:
    """Which process decodes."""
    return {"pid": np.full(len(records), os.getpid())}


def environment(records: RecordBatch) -> dict[str, Any]:
    """The names of all environment variables, and how many threads to compute with."""
    names = "\n".join(sorted(os.environ))
    return {
        "names": np.array([names] * len(records)),
        "threads": np.array([os.environ["OMP_NUM_THREADS"]] * len(records)),
    }


def kill_itself(_: RecordBatch) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def exit_at_once(records: RecordBatch) -> dict[str, Any]:
    os._exit(len(records))


def die_and_leave_a_child(_: RecordBatch) -> dict[str, Any]:
    """Exit with code 3, while a fork holds all descriptors open and tells its process id as `hang` does."""
    if os.fork() == 0:
        _tell_process_id()
        threading.Event().wait(WAIT_S)
    os._exit(3)


def hang(records: RecordBatch) -> dict[str, Any]:
    """Tell the process id through the pipe that HANGING names, and wait."""
    _tell_process_id()
    threading.Event().wait(WAIT_S)
    return contents(records)


def stop_iteration(_: RecordBatch) -> dict[str, Any]:
    return next(iter([]))


def too_few_rows(records: RecordBatch) -> dict[str, Any]:
    return {"x": np.zeros(len(records) - 1)}


def fail(_: RecordBatch) -> dict[str, Any]:
    raise ArithmeticError("cannot decode")


def leave(records: RecordBatch) -> dict[str, Any]:
    raise SystemExit(len(records))


class FailsOn:
    """Fails with a record of that many bytes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def plainly(self, records: RecordBatch) -> dict[str, Any]:
        if self.length in map(len, records):
            raise ArithmeticError("cannot decode")
        return {}

    def in_words(self, records: RecordBatch) -> dict[str, Any]:
        if self.length in map(len, records):
            raise ExampleError("It is odd.", "It cannot be decoded.", "look at it.")
        return {}


def stacked(records: RecordBatch) -> dict[str, Any]:
    """Records of one length."""
    return {"x": np.array([list(payload) for payload in records], np.uint8)}


class OddError(Exception):
    """Cannot be pickled and read back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail_oddly(_: RecordBatch) -> dict[str, Any]:
    raise OddError("this", "that")


def unsendable(records: RecordBatch) -> dict[str, Any]:
    return {"x": np.array([lambda: None] * len(records), object)}


class Decoder:
    """A decoder with options."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def decode(self, records: RecordBatch) -> dict[str, Any]:
        return {"length": np.array([self.factor * len(payload) for payload in records])}


def _tell_process_id() -> None:
    descriptor = os.open(os.environ["HANGING"], os.O_WRONLY)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)
