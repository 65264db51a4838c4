"""The worlds of an elastic job on several hosts: where further workers start, and which hosts are there."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from typing import Any

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.hosts.host import Host, assign_places, total_slots
from hvdtrain.launch.ssh.agent_client import HostAgents, RemoteWorkerGroup
from hvdtrain.launch.supervisor.elastic import Variables
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.worker_environment import RESTART_VARIABLE


class HostWorlds(AbstractContextManager["HostWorlds"]):
    """The `ElasticLauncher` of `hvdtrain launch ssh`.

    Args:
        hosts: that the job may use.
        server: of the first world; its address is that of all.
        orders: host → the order to start workers, but for their places and numbers.
        supervisor: watches over the workers.
        groups: one for each host that has workers.
    """

    def __init__(
        self,
        agents: HostAgents,
        hosts: Sequence[Host],
        server: RendezvousServer,
        orders: Mapping[str, Mapping[str, Any]],
        supervisor: Supervisor,
        groups: Sequence[RemoteWorkerGroup],
    ) -> None:
        self._agents, self._hosts, self._orders, self._supervisor = agents, hosts, orders, supervisor
        self._groups = {group.link.name: group for group in groups}
        self._first = self._used()
        self._servers = ExitStack()
        self.server = server
        self.look_at: float | None = None

    def __exit__(self, *exception: object) -> None:
        self._servers.close()

    @property
    def safe_at(self) -> float:
        """`ElasticLauncher.safe_at`."""
        lost = [group.link.heard for group in self._groups.values() if group.has_lost]
        return max([self._agents.safe_at, *(heard + self._agents.options.link_seconds for heard in lost)])

    def start(self, number: int) -> str:
        """`ElasticLauncher.start`: on the first host that has room."""
        used = self._used()
        host = next(host for host in self._there() if used[host.name] < host.slots)
        # Its world will tell it its place. Until then it needs the number of threads that the others have.
        place = assign_places([host.name] * max(self._first[host.name], used[host.name] + 1))[0]
        order = {**self._orders[host.name], "places": [asdict(place)], "numbers": [number], "world": "0"}
        group = self._groups.get(host.name)
        if group is None:
            self._groups[host.name] = RemoteWorkerGroup(self._agents.links[host.name], [number], order)
            self._supervisor.watch(self._groups[host.name])
        else:
            group.add([number], order)
        return host.name

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        """`ElasticLauncher.open_world`."""
        self._servers.close()  # nobody asks the one before any more
        server = RendezvousServer(self.server.host, len(numbers), notify=self.server.notify)
        self.server = self._servers.enter_context(server)
        places = assign_places([self._supervisor.workers[number].host for number in numbers])
        return [{**place.variables, **self.server.environment, RESTART_VARIABLE: str(restarts)} for place in places]

    def places(self) -> int:
        """`ElasticLauncher.places`."""
        self._groups = {name: group for name, group in self._groups.items() if not self._is_over(group)}
        self.look_at = self._agents.reconnect(group.link for group in self._groups.values())
        return total_slots(self._there())

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        """`ElasticLauncher.tell`."""
        group = self._groups.get(self._supervisor.workers[number].host)
        if group is not None:
            group.tell(number, order)

    def kill(self, number: int) -> None:
        """`ElasticLauncher.kill`."""
        group = self._groups.get(self._supervisor.workers[number].host)
        if group is not None:
            group.kill(number)

    def _is_over(self, group: RemoteWorkerGroup) -> bool:
        return group.has_lost and time.monotonic() >= group.link.heard + self._agents.options.link_seconds

    def _there(self) -> list[Host]:
        lost = {name for name, group in self._groups.items() if group.has_lost}
        return [host for host in self._hosts if host.name in self._agents.links and host.name not in lost]

    def _used(self) -> Counter[str]:
        return Counter(worker.host for worker in self._supervisor.workers if worker.end is None)
