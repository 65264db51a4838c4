"""Run this host's ranks of a measurement, and end them whatever happens."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

_TAIL_BYTES = 4000
_PLACE_PREFIXES = ("OMPI_COMM_", "PMIX_", "PMI_", "MV2_", "JSM_NAMESPACE_", "TORCHELASTIC_", "GROUP_")
_PLACE = {"SLURM_PROCID", "HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"} | {
    f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
}
"""What would tell a worker that it is part of another job."""


def run_workers(
    command: Sequence[str], ranks: Sequence[int], variables: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """Run `python -m hvdtrain COMMAND` once for each of `ranks`, and wait.

    Args:
        command: arguments of hvdtrain.
        ranks: numbers of the workers on this host.
        variables: added to this process's own; WORLD_SIZE, MASTER_ADDR and so on.
        seconds: deadline, after which all are killed; as when standard input ends.

    Returns:
        `codes` {rank: exit code}, `timed_out`, `stdout` of the first rank, `stderr` {rank: its end} where one failed.
    """
    with ExitStack() as stack:
        outputs = [tuple(stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)) for _ in ranks]
        workers = []
        for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
            worker = _start(command, (rank, number, len(ranks)), variables, output)
            stack.callback(_end, worker)
            workers.append(worker)
        in_time = _wait(workers, time.monotonic() + seconds)
        for worker in workers:
            _end(worker)
        failed = {
            str(rank): _tail(err)
            for rank, worker, (_, err) in zip(ranks, workers, outputs, strict=True)
            if worker.returncode
        }
        codes = {str(rank): worker.returncode for rank, worker in zip(ranks, workers, strict=True)}
        return {"codes": codes, "timed_out": not in_time, "stdout": _tail(outputs[0][0], 2**20), "stderr": failed}


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Kill what it has started, and itself if it still runs."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(timeout=10)


def free_port(address: str) -> int:
    """A port of this host on which nobody listens now.

    Raises:
        OSError: no interface bears the address.
    """
    with socket.create_server((address, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _start(
    command: Sequence[str],
    place: tuple[int, int, int],
    variables: Mapping[str, str],
    output: tuple[BinaryIO, ...],
) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not _tells_a_place(name)}
    numbers = dict(zip(("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), map(str, place), strict=True))
    return subprocess.Popen(
        [sys.executable, "-m", "hvdtrain", *command],
        stdin=subprocess.DEVNULL,
        stdout=output[0],
        stderr=output[1],
        env={**inherited, **variables, **numbers},
        start_new_session=True,
    )


def _tells_a_place(name: str) -> bool:
    return name in _PLACE or name.startswith(_PLACE_PREFIXES)


def _wait(workers: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Whether all have ended in time. The first failure ends the wait soon: the others would wait for it."""
    handles = {os.pidfd_open(worker.pid): worker for worker in workers}
    running = dict(handles)
    try:
        while running and (left := deadline - time.monotonic()) > 0:
            ready = select.select([*running, 0], [], [], left)[0]
            if 0 in ready:  # nothing is sent meanwhile: whoever asked is gone
                return False
            for handle in ready:
                if running.pop(handle).wait() != 0:
                    deadline = min(deadline, time.monotonic() + 3.0)
        return not running or any(worker.poll() for worker in workers)
    finally:
        for handle in handles:
            os.close(handle)


def _tail(file: BinaryIO, size: int = _TAIL_BYTES) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - size))
    return file.read().decode(errors="replace")
