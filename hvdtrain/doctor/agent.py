"""The doctor's process on one host: the launcher's agent, which also answers these questions:

    clock           this host's time, seconds since the epoch
    connect         reach another agent's port
    facts           what `hvdtrain.doctor.facts.collect` finds
    listen          accept the other agents on one address; returns the port
    mark            make, look for, or remove token files in the output folder
    port            a free port, for rank 0 of a measurement
    received        what arrived of a stream
    send            stream bytes to another agent for a while

An order to start names the ranks of a measurement that belong to this host. The agent runs with the rights of the user
who called the doctor, and listens only on the address it was told, to peers that know the examination's token.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from hvdtrain.doctor.agent_folder import TokenFiles
from hvdtrain.doctor.agent_streams import StreamServer, reach, send
from hvdtrain.doctor.facts import FactsRequest, collect
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, with_job_token
from hvdtrain.launch.processes.worker import WorkerSpec
from hvdtrain.launch.ssh.agent import Agent
from hvdtrain.topology.launcher_variables import without_launcher


def main(seconds: float) -> None:
    """Serve until the doctor is gone, or has answered nothing for `seconds`."""
    with StreamServer() as streams, TokenFiles() as tokens, OrphanReaper(secrets.token_hex(16), adopts=True) as reaper:
        questions: dict[str, Callable[..., Any]] = {
            "clock": time.time,
            "connect": reach,
            "facts": lambda **request: collect(FactsRequest(**request)),
            "listen": streams.listen,
            "mark": tokens.mark,
            "port": free_port,
            "received": streams.received,
            "send": send,
        }

        Agent(seconds, questions, _start).run()
        reaper.sweep()  # child processes that a question has started


def free_port(address: str) -> int:
    """A port of this host on which nobody listens now.

    Raises:
        OSError: no interface bears the address.
    """
    with socket.create_server((address, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _start(agent: Agent, job: dict[str, Any]) -> None:
    """Start `python -m hvdtrain COMMAND` as torchrun would, once for each of the job's `ranks`."""

    def specs(tokens: str) -> list[WorkerSpec]:
        inherited = {**without_launcher(os.environ), JOB_TOKEN_VARIABLE: with_job_token(os.environ, tokens)}
        command = [sys.executable, "-m", "hvdtrain", *job["command"]]
        places = [
            {"RANK": str(rank), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(len(job["ranks"]))}
            for number, rank in enumerate(job["ranks"])
        ]
        return [
            WorkerSpec(rank, command, {**inherited, **job["variables"], **place})
            for rank, place in zip(job["ranks"], places, strict=True)
        ]

    agent.start(job["token"], specs, None)


if __name__ == "__main__":
    main(float(sys.argv[1]))
