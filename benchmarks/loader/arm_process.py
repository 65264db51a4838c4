"""The process of one arm: does what it is asked on stdin, one JSON object a line, and answers likewise on stdout.

    python -m benchmarks.loader.arm_process NAME CORE

It lives through all measurements, so that no start-up is measured, and waits in a read while others are measured.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.loader.arms import make_arm
from benchmarks.loader.arms.interface import Arm, Order
from benchmarks.loader.datasets import Content, DataSet
from benchmarks.loader.memory import MemoryPeak

Request = dict[str, Any]
Reply = dict[str, Any]


class _Commands:
    """What an arm can be asked; each method is a command, its result the reply."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm

    def describe(self, request: Request) -> Reply:
        del request
        return {"format": self._arm.format, "resumes": self._arm.resumes, "versions": self._arm.versions()}

    def prepare(self, request: Request) -> Reply:
        self._arm.prepare(Path(request["folder"]), _data(request))
        return {}

    def verify(self, request: Request) -> Reply:
        """Read all; every payload must be bytes. Not timed."""
        opened = self._open(request)
        try:
            content = Content.of(_as_bytes(item) for batch in self._arm.batches(opened) for item in batch)
        finally:
            self._arm.close(opened)
        return asdict(content)

    def measure(self, request: Request) -> Reply:
        """One epoch: seconds from asking for an iterator to the last batch; first_batch_s from opening on."""
        gc.collect()
        begin = time.perf_counter()
        opened = self._open(request)
        ready = time.perf_counter()
        cpu = time.process_time()
        records = total = 0
        first = 0.0
        for batch in self._arm.batches(opened):
            first = first or time.perf_counter()
            records += len(batch)
            total += sum(map(len, batch))
        seconds, cpu_s = time.perf_counter() - ready, time.process_time() - cpu
        self._arm.close(opened)
        return {"records": records, "bytes": total, "seconds": seconds, "cpu_s": cpu_s, "first_batch_s": first - begin}

    def resume(self, request: Request) -> Reply:
        """Resume an epoch after `step` batches, several times; `exact`: the batch is that of an uninterrupted epoch."""
        step, times = request["step"], []
        opened = self._open(request)
        expected = _crc_sum(next(itertools.islice(self._arm.batches(opened), step, None)))
        self._arm.close(opened)
        opened = self._open(request)
        state = self._arm.state_at(opened, step)
        self._arm.close(opened)
        exact = True
        for _ in range(request["repeats"]):
            gc.collect()
            begin = time.perf_counter()
            opened = self._open(request)
            ready = time.perf_counter()
            batch = next(self._arm.resume(opened, state))
            times.append({"open_s": ready - begin, "first_batch_s": time.perf_counter() - ready})
            exact = exact and _crc_sum(batch) == expected
            self._arm.close(opened)
        return {"times": times, "exact": exact}

    def resume_elsewhere(self, request: Request) -> Reply:
        """data_sharding only: the time of rank 0 of W, and whether the W ranks together have the step's records."""
        step, size, times = request["step"], request["size"], []
        arm: Any = self._arm
        opened = self._open(request)
        expected = _crc_sum(next(itertools.islice(arm.batches(opened), step, None)))
        parts = sum(_crc_sum(next(arm.shard(opened, step * opened.data.batch, rank, size))) for rank in range(size))
        arm.close(opened)
        for _ in range(request["repeats"]):
            gc.collect()
            begin = time.perf_counter()
            opened = self._open(request)
            ready = time.perf_counter()
            next(arm.shard(opened, step * opened.data.batch, 0, size))
            times.append({"open_s": ready - begin, "first_batch_s": time.perf_counter() - ready})
            arm.close(opened)
        return {"times": times, "exact": parts == expected}

    def memory(self, request: Request) -> Reply:
        """Peak memory over what the process has now, of reading at most `limit` records."""
        gc.collect()
        peak = MemoryPeak()
        opened = self._open(request)
        records = 0
        for number, batch in enumerate(self._arm.batches(opened)):
            records += len(batch)
            if number % 8 == 0:
                peak.sample()
            if records >= request["limit"]:
                break
        peak.sample()
        return {"records": records, **peak.result()}

    def _open(self, request: Request) -> Any:
        order: Order = request["order"]
        return self._arm.open(Path(request["folder"]), _data(request), order)


def _data(request: Request) -> DataSet:
    return DataSet(**request["data"])


def _as_bytes(item: object) -> bytes:
    if type(item) is not bytes:
        raise TypeError(f"a batch held a {type(item).__name__}")
    return item


def _crc_sum(batch: Any) -> int:
    return sum(map(zlib.crc32, batch))


def main() -> None:
    """Pin to the core, import the library, answer until stdin ends."""
    name, core = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, {core})
    # Libraries print to stdout: their lines must not be taken for replies.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    commands = _Commands(make_arm(name))
    for line in sys.stdin:
        request: Request = json.loads(line)
        command: Callable[[Request], Reply] = getattr(commands, request["command"])
        try:
            reply = command(request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
