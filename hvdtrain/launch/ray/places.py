"""The placement groups of a job in a Ray cluster, the actors in them, and the hosts that they come to."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.broker import Say
from hvdtrain.launch.placed.host_facts import problem_of
from hvdtrain.launch.ray.request import Request
from hvdtrain.launch.ray.seat import seat_class

_SETTLE_SECONDS = 3.0  # for Ray to place what there is room for
_SPARE_SECONDS = 20.0  # the same where it would have room: a node may have come, or a job ended, a moment ago
_SEAT_SECONDS = 120.0  # for actors to start: Ray may have to install a runtime environment first
_PAUSE_SECONDS = 0.2
_RESTART_SECONDS = 30.0  # for an actor in the place of one that has died, whose node has all that it needs
_ANSWER_SECONDS = 5.0  # for an actor that runs to answer
_NOT_INSTALLED = (
    "install hvdtrain for this interpreter on all nodes, or name it in the runtime environment of the Ray job; "
    "--python names another interpreter."
)


@dataclass(eq=False)
class _Seat:
    """An actor in a bundle: `facts` are what it has said of its node, once it has."""

    node: str
    actor: Any
    looking: Any
    facts: dict[str, Any] | None = None
    serving: Any = None  # what an agent that it was asked to run will return
    follows: bool = False  # whether `facts` are of an actor that has died, in whose place this one starts


class RayPlaces(AbstractContextManager["RayPlaces"]):
    """Placement groups for `request`, from `take_first` until the end of the block; `say` takes messages for the
    launcher. Raises UsageError in `take_first`: too little room, or a node that cannot run workers."""

    def __init__(self, ray: Any, request: Request, say: Say) -> None:
        self._ray, self._request, self._say = ray, request, say
        self._groups: list[Any] = []
        self._seats: dict[tuple[int, int], _Seat] = {}
        self._names: dict[str, str] = {}  # node → what its host is called
        self._hosts: list[list[Any]] = []
        self._refused: set[str] = set()  # complaints that were said
        self._class = ray.remote(seat_class())

    def __exit__(self, *exception: object) -> None:
        from ray.util.placement_group import remove_placement_group

        for seat in self._seats.values():
            self._ray.kill(seat.actor)
        for group in self._groups:
            remove_placement_group(group)

    def take_first(self) -> None:
        """Wait for the places with which the job begins, and for what is to be known of them."""
        asked = self._request
        taken = self._take(asked.workers)
        for _ in range(max(asked.most, asked.workers) - taken):
            self._groups.append(self._group(1))
        deadline = time.monotonic() + _SEAT_SECONDS
        while True:
            self._seat_nodes()
            seats = list(self._seats.values())
            for problem in filter(None, map(self._problem, seats)):
                raise problem
            if sum(slots for _, slots, _ in self._found()) >= taken:
                return
            if time.monotonic() > deadline:
                raise UsageError(
                    f"Ray's actors did not start within {_SEAT_SECONDS:g} s.",
                    "Each of them is to start workers on its node.",
                    "see `ray status` and the logs of the cluster (/tmp/ray/session_latest/logs).",
                )
            time.sleep(_PAUSE_SECONDS)

    def look(self) -> None:
        """Tell the launcher of hosts that came and went."""
        self._seat_nodes()
        for seat in self._seats.values():
            problem = self._problem(seat)
            if problem is not None and str(problem.fact) not in self._refused:
                self._refused.add(problem.fact)
                self._say({"complaint": f"hvdtrain launch: {problem.fact} It is not used."})
        hosts = self._found()
        if hosts != self._hosts:
            self._hosts = hosts
            self._say({"hosts": hosts})

    def call(self, host: str, token: str) -> dict[str, Any]:
        """Let the host's actor run an agent for whoever knows `token`; where that is to be called, or the error."""
        seat = self._seat_on(host)
        deadline = time.monotonic() + _RESTART_SECONDS
        if seat is not None and not seat.follows and not self._is_alive(seat):
            seat = self._follow(seat)
        while seat is not None and seat.follows and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            self._seat_nodes()
            seat = self._seat_on(host)
        if seat is None or seat.facts is None or seat.follows:
            return {"error": "Ray has no place there any more"}
        seat.serving = seat.actor.serve.remote(token, self._request.link_seconds)
        return {"address": seat.facts["address"]}

    def _seat_on(self, host: str) -> _Seat | None:
        return next((seat for seat in self._usable() if self._names[seat.node] == host), None)

    def _take(self, workers: int) -> int:
        """Reserve places for all workers together, or for fewer if that is allowed; returns for how many."""
        room = self._room()
        group = self._group(workers)
        began = time.monotonic()
        while not self._is_placed(group):
            room = max(room, self._room())  # while Ray tries to place the group, what it would take seems to be taken
            patience = self._request.wait + (_SPARE_SECONDS if self._capacity() >= workers else _SETTLE_SECONDS)
            if time.monotonic() - began > patience:
                return self._take_fewer(group, workers, min(room, workers - 1))
            time.sleep(_PAUSE_SECONDS)
        self._groups.append(group)
        return workers

    def _take_fewer(self, group: Any, workers: int, room: int) -> int:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(group)
        least = self._request.least
        if room >= least and least < workers:
            return self._take(room)
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self._request.resources.items())
        waited = f", after {self._request.wait:g} s" if self._request.wait else ""
        raise UsageError(
            f"The Ray cluster has room for {room} workers of {needs} each{waited}, and the job begins with {least}.",
            "Nothing was started.",
            f"use -np {room}, ask for less with --cpus-per-worker or --gpus-per-worker, or wait with --wait."
            if room
            else "ask for less with --cpus-per-worker or --gpus-per-worker, or wait with --wait; see `ray status`.",
        )

    def _group(self, bundles: int) -> Any:
        from ray.util.placement_group import placement_group

        return placement_group([dict(self._request.resources)] * bundles, strategy=self._request.strategy)

    def _is_placed(self, group: Any) -> bool:
        # Not by `group.wait(0)`, which may be over before the answer comes, however often it is asked.
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(group).get("state") == "CREATED")

    def _room(self) -> int:
        """For how many workers there is room at most, as far as Ray's totals tell."""
        return min(_fitting(self._ray.available_resources(), self._request.resources), self._capacity())

    def _capacity(self) -> int:
        """For how many workers there would be room if nothing ran. Of a new node, Ray tells later what is free."""
        needs = self._request.resources
        return sum(_fitting(node["Resources"], needs) for node in self._ray.nodes() if node["Alive"])

    def _placed(self) -> Iterator[tuple[tuple[int, int], str]]:
        """Bundles that are on a node that is there: (group, bundle), node."""
        from ray.util.placement_group import placement_group_table

        alive = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        tables = placement_group_table()  # one question, however many groups there are
        for number, group in enumerate(self._groups):
            table = tables.get(group.id.hex(), {"state": "REMOVED"})
            for bundle, node in sorted(table.get("bundles_to_node_id", {}).items()):
                if node in alive and table["state"] in ("CREATED", "RESCHEDULING"):
                    self._name(alive[node])
                    yield (number, int(bundle)), node

    def _name(self, node: Mapping[str, Any]) -> None:
        """Two nodes of Ray may be on one machine."""
        name, identity = str(node["NodeManagerHostname"]), str(node["NodeID"])
        if identity not in self._names:
            self._names[identity] = f"{name}-{identity[:8]}" if name in self._names.values() else name

    def _seat_nodes(self) -> None:
        """An actor in each bundle that has GPUs, which only the actor knows; else in the first bundle of each node."""
        placed = dict(self._placed())
        for place in [place for place, seat in self._seats.items() if placed.get(place) != seat.node]:
            self._ray.kill(self._seats.pop(place).actor)
        for died in list(filter(self._died, self._seats.values())):
            self._follow(died)
        for place, node in placed.items():
            seat = self._seats.get(place)
            if seat is None and (self._gpus or node not in {seat.node for seat in self._seats.values()}):
                self._seats[place] = self._seat(place, node)
            elif seat is not None and (seat.facts is None or seat.follows):
                self._hear(place, seat)
        self._slots = placed

    def _follow(self, died: _Seat) -> _Seat:
        """Begin an actor in the place of one that has died."""
        place = next(place for place, seat in self._seats.items() if seat is died)
        self._ray.kill(died.actor)  # it may only be out of reach, and hold the place's GPUs
        seat = self._seats[place] = self._seat(place, died.node)
        seat.facts, seat.follows = died.facts, True
        return seat

    def _is_alive(self, seat: _Seat) -> bool:
        """Whether the actor answers, or is busy with an agent that ends."""
        try:
            self._ray.get(seat.actor.answer.remote(), timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayActorError:
            return False
        except self._ray.exceptions.RayError:
            pass
        return True

    def _died(self, seat: _Seat) -> bool:
        """Whether the actor has, as one that the kernel ends for lack of memory: its node may be well."""
        if seat.serving is None or not self._ray.wait([seat.serving], timeout=0)[0]:
            return False
        serving, seat.serving = seat.serving, None
        try:
            self._ray.get(serving, timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayActorError:
            return True
        except self._ray.exceptions.RayError:  # an error of the agent, which the launcher hears of by itself
            return False
        return False

    @property
    def _gpus(self) -> int:
        return int(self._request.resources.get("GPU", 0))

    def _seat(self, place: tuple[int, int], node: str) -> _Seat:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self._groups[place[0]], placement_group_bundle_index=place[1])
        address = next(each["NodeManagerAddress"] for each in self._ray.nodes() if each["NodeID"] == node)
        actor = self._class.options(num_cpus=0, num_gpus=self._gpus, scheduling_strategy=where).remote(address)
        return _Seat(node, actor, actor.look.remote(self._request.python))

    def _hear(self, place: tuple[int, int], seat: _Seat) -> None:
        ready, _ = self._ray.wait([seat.looking], timeout=0)
        if not ready:
            return
        try:
            facts = self._ray.get(seat.looking, timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RuntimeEnvSetupError):
                facts = {"missing": " ".join(str(error).split())[:300], "node": seat.node}
            else:  # the node has ended, perhaps: the next look tells
                self._ray.kill(self._seats.pop(place).actor)
                return
        if facts["node"] == seat.node:
            seat.facts, seat.follows = facts, False

    def _problem(self, seat: _Seat) -> UsageError | None:
        """Why the seat's node cannot run workers."""
        if seat.facts is None:
            return None
        return problem_of(seat.facts, f"Ray node {self._names[seat.node]}", _NOT_INSTALLED)

    def _usable(self) -> Iterator[_Seat]:
        return (seat for seat in self._seats.values() if seat.facts is not None and self._problem(seat) is None)

    def _found(self) -> list[list[Any]]:
        """[name, slots, GPUs] of each host, in the order of bundles."""
        hosts: dict[str, list[Any]] = {}
        usable = list(self._usable())
        for seat in usable:
            hosts.setdefault(seat.node, [self._names[seat.node], 0, []])[2].extend((seat.facts or {})["gpus"])
        for place, node in self._slots.items():
            if node in hosts and (not self._gpus or self._seats.get(place) in usable):
                hosts[node][1] += 1
        return list(hosts.values())


def _fitting(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How often `needs` fit."""
    return min(math.floor(has.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items())
