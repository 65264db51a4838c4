"""`hvdtrain launch local`: all workers on this machine, without ssh and without MPI."""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper
from hvdtrain.launch.processes.worker import WorkerSpec, require_none_left
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.restarts import command_for_restart, run_with_restarts, trains, with_run_folder
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.launch.worker_environment import worker_environment

LOOPBACK = "127.0.0.1"


def run(job: JobSpec, command: tuple[str, ...] = (), environment: Mapping[str, str] = os.environ) -> int:
    """Run all workers until they have ended, again after a failure if `job` says so; returns the exit code.

    Whatever ends this process, kill -9 too, ends every process of the job.

    The job's hosts are not looked at. `command` is argv of every worker, by default the job's.

    Raises:
        UsageError: the command cannot be started, or could not be continued by a restart.
        HvdtrainError: processes cannot be killed, or nobody reads the output.
    """
    python = shutil.which(job.python) if job.python != "python" else sys.executable
    command = command or (python or job.python, *job.argv[1:])
    command = with_run_folder(command, job.max_restarts) if job.max_restarts else command
    own_name = socket.gethostname()  # which need not be a valid name of a host
    places = [replace(place, host=own_name) for place in assign_ranks([Host("localhost", job.np)], job.np)]
    token, folder = secrets.token_hex(16), Path(job.working_dir or ".")
    with SignalInbox() as inbox, OrphanReaper(token, adopts=True) as reaper:
        console = Console(inbox)

        def attempt(restarts: int, cause: str) -> JobOutcome:
            console.holding = True
            with ExitStack() as stack:
                stack.callback(lambda: require_none_left(reaper.sweep()))
                server = stack.enter_context(RendezvousServer(LOOPBACK, job.np, notify=inbox.wake))
                argv = command_for_restart(command, lambda path: (folder / path).exists()) if restarts else command
                where = server.environment
                made = (worker_environment(environment, place, where, "lo", token, restarts, cause) for place in places)
                specs = [WorkerSpec(rank, argv, variables) for rank, variables in enumerate(made)]
                group = LocalWorkerGroup(specs, job.working_dir)
                stack.callback(group.close)
                workers = [WorkerState(rank) for rank in range(job.np)]
                start_timeout = job.start_timeout if job.np > 1 and trains(command) else None
                return Supervisor([group], workers, console, inbox, start_timeout, job.grace, server).run()

        return run_with_restarts(attempt, job.max_restarts, job.backoff, console, inbox)
