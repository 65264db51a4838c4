"""One start of a job on its hosts, after another: reach them, start the workers, watch over them."""

from __future__ import annotations

import os
import secrets
from typing import Any, final

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.hosts import Host, total_slots
from hvdtrain.launch.hosts.rank_assignment import RankAssignment, assign_ranks
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.ssh.address import address_for_hosts
from hvdtrain.launch.ssh.check import check_hosts
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.ssh.remote_workers import RemoteWorkerGroup
from hvdtrain.launch.ssh.variables import host_variables
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.resume_command import command_for_restart, trains, with_run_folder
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import JobTimeouts, Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState


@final
class Attempt:
    """Starts all workers of a job, once for each call of `run`.

    Args:
        job: what to run.
        agents: the agents of its hosts.
        console: where output goes.
        inbox: signals to the launcher.
    """

    def __init__(self, job: JobSpec, agents: HostAgents, console: Console, inbox: SignalInbox) -> None:
        self._job = job
        self._agents = agents
        self._console = console
        self._inbox = inbox
        self._token = secrets.token_hex(16)
        self._command = with_run_folder(job.argv, job.max_restarts) if job.max_restarts else job.argv

    def run(self, restarts: int) -> JobOutcome:
        """Reach the hosts, start, return when all workers have ended. Errors as `hvdtrain.launch.ssh.launcher.run`."""
        number = self._agents.gather()
        if number is not None:
            return self._said(JobOutcome(128 + number, message=f"hvdtrain launch: stopped by {number.name}."))
        hosts = [host for host in self._job.hosts if host.name in self._agents.links]
        np = workers_on(self._job, hosts, restarts)
        if np == 0:
            return self._too_few(hosts, restarts)
        self._tell_of_change(np, restarts)
        self._console.holding = True
        outcome = self._supervise(assign_ranks(hosts, np), restarts)
        self._require_swept()
        return outcome

    def _supervise(self, places: list[RankAssignment], restarts: int) -> JobOutcome:
        links = {name: link for name, link in self._agents.links.items() if any(p.host == name for p in places)}
        address = address_for_hosts({name: link.called_from for name, link in links.items()}, self._job.nics)
        with RendezvousServer(address, len(places), notify=self._inbox.wake) as server:
            common = {
                "launcher": address,
                "nics": self._job.nics,
                "folder": self._folder,
                "command": self._command_for(places[0].host, restarts),
                "rendezvous": server.environment,
                "restarts": restarts,
            }
            groups = [
                RemoteWorkerGroup(link, _on(name, places), common | self._own(name)) for name, link in links.items()
            ]
            workers = [WorkerState(place.rank, place.host) for place in places]
            watched = len(places) > 1 and trains(self._command)
            timeouts = JobTimeouts(self._job.start_timeout if watched else None, self._job.grace)
            console, inbox = self._console, self._inbox
            return Supervisor(
                groups, workers, console, inbox, timeouts, lambda: server.connected, lambda: server.arrived
            ).run()

    def _command_for(self, host: str, restarts: int) -> tuple[str, ...]:
        if not restarts:
            return self._command
        return command_for_restart(self._command, lambda path: self._agents.exists(host, self._folder, path))

    def _own(self, name: str) -> dict[str, Any]:
        """What only the workers of one host are told. Two host names may mean the same machine, and a sweep of one must
        not reach the other's processes: hence a token for each."""
        host = next(host for host in self._job.hosts if host.name == name)
        token = f"{self._token}-{self._job.hosts.index(host)}"
        return {"token": token, "variables": host_variables(self._job, host, os.environ)}

    @property
    def _folder(self) -> str:
        return self._job.working_dir or os.getcwd()

    def _require_swept(self) -> None:
        left = self._agents.sweep()
        if left:
            raise HvdtrainError(
                f"Processes {', '.join(left)} of the job cannot be killed.",
                "They wait inside the kernel, and may hold the run folder and the GPU.",
                "look at them with `ps -o pid,stat,wchan,cmd`; a dead network disk is the usual cause.",
            )

    def _too_few(self, hosts: list[Host], restarts: int) -> JobOutcome:
        if not restarts:
            raise self._unreachable()
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self._agents.failures.items())
        slots, least = total_slots(hosts), self._job.min_workers or self._job.np
        text = f"hvdtrain launch: {slots} slots are left, {least} workers are needed. {reasons}."
        return self._said(JobOutcome(1, message=text, may_restart=True))

    def _unreachable(self) -> UsageError:
        reasons = dict(self._agents.failures)
        hints = []
        for finding in check_hosts(list(reasons), self._job.ssh_port, python=self._job.python):
            reasons[finding.host] = finding.message
            hints.append(finding.hint)
        return UsageError(
            f"Hosts cannot be used: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}.",
            "Each of them is to run workers, and nothing was started.",
            f"{'; '.join(dict.fromkeys(hints)) or 'install hvdtrain on every host for the interpreter of --python'}.",
        )

    def _tell_of_change(self, np: int, restarts: int) -> None:
        if np != self._job.np or self._agents.failures:
            missing = "".join(f"; {name} is missing: {reason}" for name, reason in self._agents.failures.items())
            verb = "go on" if restarts else "begin"
            workers = f"{np} worker{'s' if np > 1 else ''}"
            self._console.say(f"hvdtrain launch: {verb} with {workers}, of {self._job.np} asked for{missing}.")

    def _said(self, outcome: JobOutcome) -> JobOutcome:
        self._console.say(outcome.message)
        return outcome


def _on(host: str, places: list[RankAssignment]) -> list[RankAssignment]:
    return [place for place in places if place.host == host]


def workers_on(job: JobSpec, hosts: list[Host], restarts: int) -> int:
    """How many workers to start on those hosts that are there; 0 where they are too few.

    As many as were asked for; in a restart as many as there is room for, between --min-workers and --max-workers.
    """
    slots = total_slots(hosts)
    if slots >= job.np:
        return min(slots, job.max_workers or job.np) if restarts else job.np
    return slots if slots >= (job.min_workers or job.np) else 0
