"""The worlds of an elastic job on several hosts: where further workers start, and which hosts are there."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import InitVar, asdict, dataclass
from typing import Any

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.hosts.discovery import Discovery
from hvdtrain.launch.hosts.host import Host, total_slots
from hvdtrain.launch.ssh.agent_client import RemoteWorkerGroup
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.supervisor.newcomers import Variables
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.topology.launcher_variables import RESTART_VARIABLE
from hvdtrain.topology.source_address import LOOPBACK
from hvdtrain.topology.topology import assign_places


@dataclass(eq=False)
class HostWorlds(AbstractContextManager["HostWorlds"]):
    """The `ElasticLauncher` of launchers with agents, on the hosts of `agents`, as `discovery` names them now.

    `order` makes the order that starts workers of a host, but for their places and numbers; `groups` has one group for
    each host with workers.
    """

    agents: HostAgents
    discovery: Discovery | None
    server: RendezvousServer
    order: Callable[[Host], Mapping[str, Any]]
    supervisor: Supervisor
    groups: InitVar[Sequence[RemoteWorkerGroup]]

    def __post_init__(self, groups: Sequence[RemoteWorkerGroup]) -> None:
        self._groups = {group.link.name: group for group in groups}
        self._first = self._used()
        self._servers = ExitStack()
        self._said: dict[str, str] = {}  # host → why it cannot be used
        self.look_at: float | None = None

    def __exit__(self, *exception: object) -> None:
        self._servers.close()

    @property
    def safe_at(self) -> float:
        groups = [group for group in self._groups.values() if group.has_lost]
        return max([self.agents.safe_at, *(self._ended_at(group) for group in groups)])

    def start(self, number: int) -> str:
        """On a host that has room, where the fewest workers have failed."""
        used, workers = self._used(), self.supervisor.workers
        failed = Counter(worker.host for worker in workers if worker.end is not None and worker.end.failed)
        host = min((host for host in self._there() if used[host.name] < host.slots), key=lambda host: failed[host.name])
        # Its world will tell it its place. Until then it needs the number of threads that the others have.
        place = assign_places([host.name] * max(self._first[host.name], used[host.name] + 1))[0]
        order = {**self.order(host), "places": [asdict(place)], "numbers": [number], "world": "0"}
        group = self._groups.get(host.name)
        if group is None:
            group = RemoteWorkerGroup(self.agents.links[host.name], [number], order, joins_others=True)
            self._groups[host.name] = group
            self.supervisor.watch(group)
        else:
            group.add_beside_others([number], order)
        return host.name

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        self._servers.close()  # nobody asks the one before any more
        server = RendezvousServer(self.server.host, len(numbers), notify=self.server.notify)
        self.server = self._servers.enter_context(server)
        places = assign_places([self.supervisor.workers[number].host for number in numbers])
        return [{**place.variables, **self.server.environment, RESTART_VARIABLE: str(restarts)} for place in places]

    def places(self) -> int:
        if self.discovery is not None:
            self._follow(self.discovery)
        now = time.monotonic()
        self._groups = {
            name: group for name, group in self._groups.items() if not group.has_lost or now < self._ended_at(group)
        }
        self.look_at = self.agents.reconnect(group.link for group in self._groups.values())
        self._tell_of_failures()
        return total_slots(self._there())

    def placed(self, numbers: Sequence[int]) -> list[int]:
        slots = Counter({host.name: host.slots for host in self._there()})
        with_place = []
        for number in numbers:
            host = self.supervisor.workers[number].host
            slots[host] -= 1
            if slots[host] >= 0:
                with_place.append(number)
        return with_place

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        group = self._groups.get(self.supervisor.workers[number].host)
        if group is not None:
            group.tell(number, order)

    def kill(self, number: int) -> None:
        group = self._groups.get(self.supervisor.workers[number].host)
        if group is not None:
            group.kill(number)

    def _follow(self, discovery: Discovery) -> None:
        """Use the hosts that `discovery` names now; agents of others are sent away, once no worker runs there."""
        for complaint in discovery.take_complaints():
            self.supervisor.console.say(complaint)
        hosts = discovery.hosts
        if hosts != self.agents.hosts:
            self.agents.use(hosts)
        named = {host.name for host in hosts}
        busy = {worker.host for worker in self.supervisor.workers if worker.end is None}
        for name, link in self.agents.links.items():
            if name not in named | busy and link not in self.agents.dismissed:
                self.agents.dismiss(name)

    def _tell_of_failures(self) -> None:
        failures = dict(self.agents.failures)
        for host in self.agents.hosts:
            if self._is_out_of_reach(host):
                failures[host.name] = (
                    "all others run on this machine, and meet where no other one can reach them; "
                    "--nic names a network for them"
                )
        for name, why in failures.items():
            if name not in self._said:
                self.supervisor.console.say(
                    f"hvdtrain launch: {name} is not used now: {why.rstrip('.')}. It is tried again."
                )
        self._said = failures

    def _is_out_of_reach(self, host: Host) -> bool:
        link = self.agents.links.get(host.name)
        return link is not None and bool(link.called_from) and self.server.host == LOOPBACK

    def _ended_at(self, group: RemoteWorkerGroup) -> float:
        """When the workers of an agent that is lost have certainly ended."""
        return 0.0 if group.link in self.agents.dismissed else group.link.heard + self.agents.reach.link_seconds

    def _there(self) -> list[Host]:
        lost = {name for name, group in self._groups.items() if group.has_lost}
        self.agents.left_out |= self.supervisor.wrong_hosts
        return [
            host
            for host in self.agents.usable
            if host.name not in lost
            and self.agents.links[host.name] not in self.agents.dismissed
            and not self._is_out_of_reach(host)
        ]

    def _used(self) -> Counter[str]:
        workers = self.supervisor.workers
        return Counter(worker.host for worker in workers if worker.end is None and not worker.was_replaced)
