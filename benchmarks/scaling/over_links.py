"""Allreduces of two workers over a limited link, beside the ring model with what plain sockets reach on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.commands import printed_json
from hvdtrain.experiments.emulated_links import EmulatedLinks, emulated_links

RATES = (50, 200, 1000)
"""Million bits a second."""
SIZES = (2**20, 2**24)
"""Bytes of an allreduce."""
_Command = Callable[[int, int, EmulatedLinks], tuple[list[str], dict[str, str]]]
"""Of rank, port and hosts: the words of a command, and its variables."""
_WORKERS = 2
_PING_PONG = str(Path(__file__).parent / "ping_pong.py")
_DEADLINE_S = 300.0


def measure(mbit: int, blocks: int) -> list[dict[str, Any]]:
    """For each block: the link's latency and bandwidth; seconds of a ring by hand, and twice of our allreduce."""
    with emulated_links(_WORKERS, mbit) as hosts:
        return [
            {
                **_together(hosts, _ping_pong, 29_777),
                "sizes": _allreduces(hosts, 29_778),
                "again": _allreduces(hosts, 29_779),
            }
            for _ in range(blocks)
        ]


def ring_seconds(size: int, link: dict[str, float]) -> float:
    """2(n - 1) steps, each of which takes the latency and sends one n-th of the tensor."""
    return 2 * (_WORKERS - 1) * (link["latency"] + size / (_WORKERS * link["bandwidth"]))


def _ping_pong(rank: int, port: int, hosts: EmulatedLinks) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, _PING_PONG, ("ask", "serve")[rank], hosts.addresses[1], str(port), *map(str, SIZES)], {}


def _worker(rank: int, port: int, hosts: EmulatedLinks) -> tuple[list[str], dict[str, str]]:
    sizes = ",".join(map(str, SIZES))
    variables = {"RANK": rank, "WORLD_SIZE": _WORKERS, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
    variables |= {"GROUP_WORLD_SIZE": _WORKERS, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    argv = [sys.executable, "-m", "hvdtrain", "bench", "allreduce", "--json", "--sizes", sizes, "--seconds", "10"]
    return argv, {"MASTER_ADDR": hosts.addresses[0], **{name: str(value) for name, value in variables.items()}}


def _allreduces(hosts: EmulatedLinks, port: int) -> dict[str, float]:
    return {str(one["bytes"]): one["seconds"] for one in _together(hosts, _worker, port, key="sizes")["sizes"]}


def _together(hosts: EmulatedLinks, command: _Command, port: int, key: str = "latency") -> dict[str, Any]:
    """What rank 0 prints; the other rank runs meanwhile. Raises `RuntimeError` if either fails."""
    argv, variables = command(1, port, hosts)
    with subprocess.Popen([*hosts.on(1), *argv], env={**os.environ, **variables}, stdout=subprocess.DEVNULL) as other:
        try:
            argv, variables = command(0, port, hosts)
            found = printed_json([*hosts.on(0), *argv], key, {**os.environ, **variables}, _DEADLINE_S)
            if other.wait(_DEADLINE_S) != 0:
                raise RuntimeError(f"{' '.join(argv)}: the other rank ended with exit code {other.returncode}")
        finally:
            other.kill()
    return found
