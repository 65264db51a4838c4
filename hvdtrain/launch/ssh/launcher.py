"""`hvdtrain launch ssh`: workers on several hosts, started, watched and restarted by this process."""

import functools
import os
import secrets
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.hosts.discovery import Discovery, HostDiscovery
from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.processes.worker import require_none_left
from hvdtrain.launch.rendering import require_supported
from hvdtrain.launch.ssh.agent_client import RemoteWorkerGroup
from hvdtrain.launch.ssh.check import check_hosts
from hvdtrain.launch.ssh.command import SshOptions, SshReach, preview
from hvdtrain.launch.ssh.elastic_hosts import HostWorlds
from hvdtrain.launch.ssh.folder_on_hosts import FolderOnHosts
from hvdtrain.launch.ssh.host_addresses import address_for_hosts, is_this_machine
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.ssh.room import change_of_size, too_few, workers_on
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.elastic import Elastic
from hvdtrain.launch.supervisor.restarts import (
    require_changes_possible,
    run_with_restarts,
    trains,
    with_run_folder,
)
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.launch.worker_environment import host_variables, require_known_devices
from hvdtrain.topology.topology import RankAssignment

_NAME = "hvdtrain launch ssh"
UNSUPPORTED = ("image", "slots_per_host", "time_limit", "allow_root", "binding")
"""Fields of JobSpec for which launchers with agents on given hosts have nothing."""


def start(options: Namespace, command: tuple[str, ...]) -> int:
    """Run the job that options describe, or print what would run on each host; returns the exit code."""
    job = launcher_api.job_from(options, command, launcher_api.hosts_now(options))
    reach = SshOptions(
        job.python, job.ssh_port, groups.link_timeout(options), checks_host_keys=not options.no_host_key_check
    )
    if not options.dry_run:
        launcher_api.require_outside_job()
        return run(job, reach)
    require_runnable(job, os.environ)
    sys.stdout.write(preview(job, reach, is_this_machine, os.environ, os.getcwd()))
    return 0


LAUNCHER = launcher_api.Launcher(
    "workers on your hosts, over ssh, without MPI; restarts them: -H node1:4,node2:4",
    (
        *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT),
        *(*groups.RESTARTS, groups.BACKOFF, *groups.ELASTIC, groups.start_timeout(300.0)),
        groups.LINK_TIMEOUT,
        groups.option("--no-host-key-check", action="store_true", help="don't check host keys; unsafe"),
    ),
    start,
    takes_hosts=True,
)


def run(job: JobSpec, options: SshOptions) -> int:
    """Run `job` on its hosts; returns the exit code. Whatever ends this process ends every process of the job. Raises
    UsageError: hosts that cannot be reached at the start, a command that cannot be started, or a job that this launcher
    cannot run; HvdtrainError: processes cannot be killed, or nobody reads the output."""
    require_runnable(job, os.environ)
    if not options.checks_host_keys:
        Console().say("hvdtrain launch: WARNING: host keys are not checked; whoever answers gets the job's variables.")
    hosts = job.hosts if job.max_restarts else job.used_hosts  # others may step in where one is lost
    with SignalInbox() as inbox, ExitStack() as outer:
        agents = outer.enter_context(HostAgents(hosts, SshReach(options, is_this_machine), inbox, job.start_timeout))
        console, script = Console(inbox), job.host_discovery_script
        discovery = None if script is None else outer.enter_context(HostDiscovery(script, inbox.wake, job.hosts))
        attempt = Attempt(job, agents, console, inbox, functools.partial(_unreachable, job), discovery)
        attempt.folder = FolderOnHosts.asked_for(os.environ)
        return run_with_restarts(attempt.run, job, console, inbox)


def require_runnable(
    job: JobSpec,
    environ: Mapping[str, str],
    launcher: str = _NAME,
    unsupported: tuple[str, ...] = UNSUPPORTED,
) -> None:
    """Raise UsageError unless this launcher can run the job; `environ` has the variables that are to be passed on,
    `unsupported` are the fields of JobSpec for which it has nothing."""
    require_supported(job, launcher, unsupported)
    unset = next((name for name in job.env if name not in environ), None)
    if unset is not None:
        raise UsageError(f"{unset} is to be passed on.", "It is not set here.", f"export {unset}, or leave it out.")
    require_changes_possible(job)
    if launcher == _NAME:
        require_known_devices(job, environ)


@dataclass(eq=False)
class Attempt:
    """Starts all workers of a job on the hosts of `agents`, once for each call of `run`. `refusal` explains hosts that
    cannot be used at the first start, given the reasons; `variables` makes those that workers of a host get. The
    `folder` is sent to the hosts, and fetched."""

    job: JobSpec
    agents: HostAgents
    console: Console
    inbox: SignalInbox
    refusal: Callable[[Mapping[str, str]], UsageError]
    discovery: Discovery | None = None
    variables: Callable[[JobSpec, Host, Mapping[str, str]], dict[str, str]] = host_variables
    folder: FolderOnHosts | None = None

    def __post_init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._host_numbers: dict[str, int] = {}
        argv, most = self.job.argv, self.job.max_restarts
        self._command = with_run_folder(argv, most) if most else argv

    def run(self, restarts: int, cause: str) -> JobOutcome:
        """Reach the hosts, start, return when all workers have ended. Errors as `hvdtrain.launch.ssh.launcher.run`."""
        number = self._connect()
        if number is not None:
            return self._said(JobOutcome(128 + number, message=f"hvdtrain launch: stopped by {number.name}."))
        hosts = self.agents.usable
        np = workers_on(self.job, hosts, restarts)
        if np == 0:
            if not restarts:
                raise self.refusal(self.agents.failures)
            return self._said(too_few(self.job, self.agents, self.discovery is not None))
        if change := change_of_size(self.job, np, self.agents, restarts):
            self.console.say(change)
        self.console.holding = True
        self._send_folder(hosts)
        outcome = self._supervise(assign_ranks(hosts, np), restarts, cause)
        self._fetch_folder(outcome)
        require_none_left(self.agents.sweep())
        return outcome

    def _send_folder(self, hosts: Sequence[Host]) -> None:
        if self.folder is not None:
            self.folder.send([self.agents.links[host.name] for host in hosts], self.inbox.has_signal)
            self.inbox.wake()  # a signal is the supervisor's

    def _fetch_folder(self, outcome: JobOutcome) -> None:
        if self.folder is None:
            return
        try:
            self.folder.fetch()
        except HvdtrainError:
            if outcome.code == 0:  # else the failure itself says more
                raise

    def _connect(self) -> signal.Signals | None:
        """Reach the hosts that there are at the end; returns a signal that came meanwhile."""
        while True:
            if self.discovery is not None:
                self.agents.use(self.discovery.hosts)
            number = self.agents.connect_all()
            if number is not None or self.discovery is None or self.discovery.hosts == self.agents.hosts:
                return number

    def _supervise(self, places: list[RankAssignment], restarts: int, cause: str) -> JobOutcome:
        of_hosts: dict[str, list[RankAssignment]] = {}
        for place in places:
            of_hosts.setdefault(place.host, []).append(place)
        links = {name: link for name, link in self.agents.links.items() if name in of_hosts}
        is_elastic = self.job.is_elastic and trains(self._command)
        # Workers of all hosts may join later, and are told the same address.
        callers = self.agents.links if is_elastic else links
        address = address_for_hosts({name: link.called_from for name, link in callers.items()}, self.job.nics)
        with RendezvousServer(address, len(places), notify=self.inbox.wake) as server:
            common = {
                "launcher": address,
                "nics": self.job.nics,
                "folder": self._folder,
                "command": self._command,
                "rendezvous": server.environment,
                "restarts": restarts,
                "cause": cause,
                "world": "1" if is_elastic else None,
            }
            used = [host for host in self.agents.hosts if host.name in links]
            groups = [self._start(host, of_hosts[host.name], common) for host in used]
            workers = [WorkerState(place.rank, place.host) for place in places]
            watched = trains(self._command) and (len(places) > 1 or is_elastic)
            start_timeout = self.job.start_timeout if watched else None
            supervisor = Supervisor(groups, workers, self.console, self.inbox, start_timeout, self.job.grace, server)
            if not is_elastic:
                return self._watched(supervisor)

            def order(host: Host) -> dict[str, Any]:
                return common | self._order(host)

            with HostWorlds(self.agents, self.discovery, server, order, supervisor, groups) as worlds:
                supervisor.elastic = Elastic(self.job, workers, worlds, self.console.say, restarts)
                return self._watched(supervisor)

    def _watched(self, supervisor: Supervisor) -> JobOutcome:
        outcome = supervisor.run()
        self.agents.left_out |= supervisor.wrong_hosts
        return outcome

    def _start(self, host: Host, places: list[RankAssignment], common: dict[str, Any]) -> RemoteWorkerGroup:
        """Those `places`, which are on this host."""
        numbers = [place.rank for place in places]
        seats = {"places": [asdict(place) for place in places], "numbers": numbers}
        return RemoteWorkerGroup(self.agents.links[host.name], numbers, common | self._order(host) | seats)

    def _order(self, host: Host) -> dict[str, Any]:
        """What differs between hosts in the orders to start workers. Two host names may mean the same machine, and a
        sweep of one must not reach the other's processes: hence a token for each."""
        number = self._host_numbers.setdefault(host.name, len(self._host_numbers))
        return {"token": f"{self._token}-{number}", "variables": self.variables(self.job, host, os.environ)}

    @property
    def _folder(self) -> str:
        return self.job.working_dir or os.getcwd()

    def _said(self, outcome: JobOutcome) -> JobOutcome:
        self.console.say(outcome.message)
        return outcome


def _unreachable(job: JobSpec, failures: Mapping[str, str]) -> UsageError:
    reasons = dict(failures)
    hints = []
    for finding in check_hosts(list(reasons), job.ssh_port, python=job.python):
        reasons[finding.host] = finding.message
        hints.append(finding.hint)
    return UsageError(
        f"Hosts cannot be used: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}.",
        "Each of them is to run workers, and nothing was started.",
        f"{'; '.join(dict.fromkeys(hints)) or 'install hvdtrain on every host for the interpreter of --python'}.",
    )
