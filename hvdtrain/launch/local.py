"""`hvdtrain launch local`: all workers on this machine, without ssh and without MPI."""

import functools
import os
import secrets
import shlex
import shutil
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.hosts.discovery import HostDiscovery
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper
from hvdtrain.launch.processes.worker import WorkerSpec, require_none_left
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.rendering import comment, resource_notes
from hvdtrain.launch.ssh.host_addresses import is_this_machine
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.elastic import Elastic, FixedWorkers
from hvdtrain.launch.supervisor.newcomers import Variables
from hvdtrain.launch.supervisor.restarts import (
    require_changes_possible,
    run_with_restarts,
    trains,
    with_run_folder,
)
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.launch.worker_environment import size_variables, worker_environment
from hvdtrain.topology.launcher_variables import RESTART_VARIABLE
from hvdtrain.topology.source_address import LOOPBACK
from hvdtrain.topology.topology import RankAssignment, assign_places
from hvdtrain.world_channel import WORLD_VARIABLE


def start(options: Namespace, command: tuple[str, ...]) -> int:
    """Run the job that options describe, or print what each worker would run; returns the exit code."""
    job = launcher_api.job_from(options, command, launcher_api.this_host(options.np))
    if not options.dry_run:
        launcher_api.require_outside_job()
        return run(job)
    require_changes_possible(job)
    how = ("start", "each is told its rank and where the others are by variables; no ssh, no MPI")
    print(comment(f"hvdtrain launch local: {job.np} processes, each of them:", (*resource_notes(job), how)))
    print(shlex.join(job.argv))
    return 0


LAUNCHER = launcher_api.Launcher(
    "workers on this machine, without ssh and MPI; restarts them",
    (*groups.JOB, *groups.RESTARTS, groups.BACKOFF, *groups.ELASTIC, groups.start_timeout(300.0)),
    start,
)


def run(job: JobSpec, command: tuple[str, ...] = (), environment: Mapping[str, str] = os.environ) -> int:
    """Run all workers until they have ended, again after a failure if `job` says so; returns the exit code.

    Whatever ends this process, kill -9 too, ends every process of the job.

    The job's hosts are not looked at. `command` is argv of every worker, by default the job's. Raises UsageError: the
    command cannot be started, or could not be continued by a restart; HvdtrainError: processes cannot be killed, or
    nobody reads the output.
    """
    python = shutil.which(job.python) if job.python != "python" else sys.executable
    command = command or (python or job.python, *job.argv[1:])
    require_changes_possible(job)
    command = with_run_folder(command, job.max_restarts) if job.max_restarts else command
    token = secrets.token_hex(16)
    with SignalInbox() as inbox, OrphanReaper(token, adopts=True) as reaper, ExitStack() as outer:
        console, script = Console(inbox), job.host_discovery_script
        is_here = functools.cache(is_this_machine)  # names are resolved once, whatever the script says how often
        discovery = None if script is None else outer.enter_context(HostDiscovery(script, inbox.wake))
        if discovery is not None:
            _require_room(job, _slots_here(discovery, is_here))

        def attempt(restarts: int, cause: str) -> JobOutcome:
            console.holding = True
            with ExitStack() as stack:
                stack.callback(lambda: require_none_left(reaper.sweep()))
                start = _Start(job, command, environment, token, restarts, cause, inbox, discovery, is_here)
                stack.callback(start.close)
                return start.supervisor(console).run()

        return run_with_restarts(attempt, job, console, inbox)


@dataclass(eq=False)
class _Start:
    """One start of all workers; the launcher of an elastic job's further ones."""

    job: JobSpec
    command: tuple[str, ...]
    inherited: Mapping[str, str]
    token: str
    restarts: int
    cause: str
    inbox: SignalInbox
    discovery: HostDiscovery | None
    is_here: Callable[[str], bool]

    def __post_init__(self) -> None:
        self.safe_at = 0.0
        self.look_at: float | None = None
        job = self.job
        self._is_elastic = job.is_elastic and trains(self.command)
        self._workers: list[WorkerState] = []
        self._servers = ExitStack()
        self.server = self._open_server(job.np)
        made = [(place.rank, self.command, self._environment(place)) for place in _places(job.np)]
        specs = [WorkerSpec(*each, self._is_elastic) for each in made]
        with ExitStack() as if_it_fails:
            if_it_fails.push(self._servers)
            self._group = LocalWorkerGroup(specs, job.working_dir)
            if_it_fails.pop_all()
        self.tell, self.kill = self._group.tell, self._group.kill

    def supervisor(self, console: Console) -> Supervisor:
        job, workers = self.job, [WorkerState(rank) for rank in range(self.job.np)]
        elastic: Elastic | FixedWorkers = FixedWorkers()
        if self._is_elastic:
            self._say, self._workers = console.say, workers
            elastic = Elastic(job, workers, self, console.say, self.restarts)
        watched = trains(self.command) and (job.np > 1 or self._is_elastic)
        start_timeout = job.start_timeout if watched else None
        inbox, group = self.inbox, self._group
        return Supervisor([group], workers, console, inbox, start_timeout, job.grace, self.server, elastic)

    def start(self, number: int) -> str:
        # Its world will tell it its place. Until then it needs the number of threads that the others have: another one
        # would compute other last bits.
        variables = self._environment(_places(self.job.np)[0]) | {WORLD_VARIABLE: "0"}
        self._group.add(WorkerSpec(number, self.command, variables, is_elastic=True))
        return ""

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        self.server = self._open_server(len(numbers))
        common = {**self.server.environment, RESTART_VARIABLE: str(restarts)}
        return [{**place.variables, **common} for place in _places(len(numbers))]

    def places(self) -> int:
        wrong = sum(worker.computes_wrongly for worker in self._workers)
        if self.discovery is None:
            return self.job.np - wrong
        for complaint in self.discovery.take_complaints():
            self._say(complaint)
        return max(0, _slots_here(self.discovery, self.is_here) - wrong)

    def placed(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers[: self.places()])

    def close(self) -> None:
        """Forget the workers, which have ended or were killed."""
        self._group.close()
        self._servers.close()

    def _open_server(self, size: int) -> RendezvousServer:
        self._servers.close()  # nobody asks the one before any more
        return self._servers.enter_context(RendezvousServer(LOOPBACK, size, notify=self.inbox.wake))

    def _environment(self, place: RankAssignment) -> dict[str, str]:
        where, token, restarts, cause = self.server.environment, self.token, self.restarts, self.cause
        variables = worker_environment(self.inherited, place, where, "lo", token, restarts, cause)
        return variables | size_variables(self.job) | ({WORLD_VARIABLE: "1"} if self._is_elastic else {})


def _slots_here(discovery: HostDiscovery, is_here: Callable[[str], bool]) -> int:
    return sum(host.slots for host in discovery.hosts if is_here(host.name))


def _require_room(job: JobSpec, slots: int) -> None:
    if slots < job.np:
        raise UsageError(
            f"-np is {job.np}, and --host-discovery-script names {slots} slot{'s' * (slots != 1)} of this machine.",
            "All workers start on this machine.",
            f"let {job.host_discovery_script} print localhost:{job.np}, or start the job on all hosts that it names by "
            "`hvdtrain launch ssh`.",
        )


def _places(workers: int) -> list[RankAssignment]:
    return assign_places([socket.gethostname()] * workers)
