"""`hvdtrain launch local`: all workers on this machine, without ssh and without MPI."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.job import JobSpec, flag_of
from hvdtrain.launch.job_checks import require_numbers
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper
from hvdtrain.launch.processes.worker import WorkerSpec
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.restarts import RestartPolicy, run_with_restarts
from hvdtrain.launch.supervisor.resume_command import command_for_restart, trains, with_run_folder
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import JobTimeouts, Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.launch.worker_environment import worker_environment

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LocalJob:
    """What to run on this machine.

    Args:
        command: argv of every worker.
        np: number of workers.
        max_restarts: how often all workers are started again after a failure.
        backoff: seconds before the first restart; each further one waits twice as long, at most a minute.
        start_timeout: seconds within which all workers must have found each other.
        grace: seconds between a forwarded signal and SIGKILL.
        environment: all variables that workers inherit; default: this process's.
        working_dir: where they start; None: where this process is.

    Raises:
        UsageError: a number that cannot be, or an empty command.
    """

    command: tuple[str, ...]
    np: int
    max_restarts: int = 0
    backoff: float = 1.0
    start_timeout: float = 300.0
    grace: float = 30.0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    working_dir: str | None = None

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("There is no command.", "Workers have nothing to do.", "write it after `--`.")
        least = {"np": 1, "max_restarts": 0, "backoff": 0, "start_timeout": 0, "grace": 0}
        require_numbers({flag_of(name): (getattr(self, name), number) for name, number in least.items()})


def run(job: JobSpec) -> int:
    """Run `job` on this machine; returns the exit code. Errors as `run_local`."""
    python = shutil.which(job.python) if job.python != "python" else sys.executable
    return run_local(
        LocalJob(
            command=(python or job.python, *job.argv[1:]),
            np=job.np,
            max_restarts=job.max_restarts,
            backoff=job.backoff,
            start_timeout=job.start_timeout,
            grace=job.grace,
            working_dir=job.working_dir,
        )
    )


def run_local(job: LocalJob) -> int:
    """Run all workers until they have ended, again after a failure if `job` says so; returns the exit code.

    Whatever ends this process, kill -9 too, ends every process of the job.

    Raises:
        UsageError: the command cannot be started, or could not be continued by a restart.
        HvdtrainError: processes cannot be killed, or nobody reads the output.
    """
    if job.max_restarts:
        job = replace(job, command=with_run_folder(job.command, job.max_restarts))
    token = secrets.token_hex(16)
    with SignalInbox() as inbox, OrphanReaper(token, adopts=True) as reaper:
        console = Console(inbox)
        policy = RestartPolicy(job.max_restarts, job.backoff)
        attempt = partial(_run_once, job, token, reaper, console, inbox)
        return run_with_restarts(attempt, policy, console, inbox)


def _run_once(
    job: LocalJob, token: str, reaper: OrphanReaper, console: Console, inbox: SignalInbox, restarts: int
) -> JobOutcome:
    console.holding = True
    with ExitStack() as stack:
        stack.callback(_require_none_left, reaper)
        server = stack.enter_context(RendezvousServer(LOOPBACK, job.np, notify=inbox.wake))
        group = LocalWorkerGroup(_orders(job, server.environment, token, restarts), job.working_dir)
        stack.callback(group.close)
        workers = [WorkerState(rank) for rank in range(job.np)]
        timeouts = JobTimeouts(job.start_timeout if job.np > 1 and trains(job.command) else None, job.grace)
        return Supervisor([group], workers, console, inbox, timeouts, server).run()


def _orders(job: LocalJob, rendezvous: Mapping[str, str], token: str, restarts: int) -> Iterator[WorkerSpec]:
    command = job.command
    if restarts:
        command = command_for_restart(command, lambda path: (Path(job.working_dir or ".") / path).exists())
    own_name = socket.gethostname()
    for place in assign_ranks([Host("localhost", job.np)], job.np):
        named = replace(place, host=own_name)
        environment = worker_environment(job.environment, named, rendezvous, "lo", token, restarts)
        yield WorkerSpec(place.rank, command, environment)


def _require_none_left(reaper: OrphanReaper) -> None:
    left = reaper.sweep()
    if left:
        raise HvdtrainError(
            f"Processes {', '.join(map(str, left))} of the job cannot be killed.",
            "They wait inside the kernel, and may hold the run folder and the GPU.",
            "look at them with `ps -o pid,stat,wchan,cmd`; a dead network disk is the usual cause.",
        )
