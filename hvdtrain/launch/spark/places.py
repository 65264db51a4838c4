"""The places of a job in a Spark cluster: one barrier stage after the other, and the hosts that they come to."""

import time
from contextlib import AbstractContextManager
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.broker import Say
from hvdtrain.launch.placed.host_facts import problem_of
from hvdtrain.launch.spark.failures import why_no_context, why_refused
from hvdtrain.launch.spark.request import Request
from hvdtrain.launch.spark.stage import BarrierStage

_SEAT_SECONDS = 120.0  # for the tasks of a stage to start once there is room
_PAUSE_SECONDS = 0.1
_AGAIN_SECONDS = 1.0  # between two stages
_NOT_INSTALLED = "install hvdtrain for that interpreter on all machines of the cluster, or name another with --python."


class SparkPlaces(AbstractContextManager["SparkPlaces"]):
    """Barrier stages for `request` in the context `spark`, from `take_first` until the end of the block. When Spark has
    lost a task, it ends all of the stage, and another stage begins as soon as there is room.

    Raises UsageError in `take_first`: too little room, or an executor that cannot run workers.
    """

    def __init__(self, spark: Any, request: Request, say: Say) -> None:
        self._spark, self._request, self._say = spark, request, say
        settings = spark.getConf()
        called = settings.get("spark.driver.host")
        self._address = settings.get("spark.driver.bindAddress") or called, called
        self._stage: BarrierStage | None = None
        self._agents: dict[str, tuple[int, list[Any]]] = {}  # host → partition of the task with its agent, its address
        self._next_at = 0.0  # before this time of the monotonic clock, no other stage begins

    def __exit__(self, *exception: object) -> None:
        if self._stage is not None:
            self._stage.close()

    def take_first(self) -> None:
        self._await_room()
        self._begin()
        deadline = time.monotonic() + _SEAT_SECONDS
        while not self._agents:
            self._heed()
            if self._stage is not None and self._stage.ended:
                raise why_refused(self._stage.ended, self._request)
            if time.monotonic() > deadline:
                raise UsageError(
                    f"Spark did not start the {self._request.workers} tasks of the stage within {_SEAT_SECONDS:g} s.",
                    "Each of them is to hold the place of a worker.",
                    "see the application on the page of Spark's master; other jobs may hold what they need.",
                )
            time.sleep(_PAUSE_SECONDS)

    def look(self) -> None:
        self._heed()
        if self._stage is not None and self._stage.ended:
            self._agents = {}
            self._say({"hosts": []})
            self._stage.close()
            self._stage, self._next_at = None, time.monotonic() + _AGAIN_SECONDS
        elif self._stage is None and time.monotonic() >= self._next_at and self._room() >= self._request.workers:
            self._begin()

    def call(self, host: str, token: str) -> dict[str, Any]:
        if host not in self._agents or self._stage is None:
            return {"error": "Spark has no place there any more"}
        number, address = self._agents[host]
        try:
            self._stage.tell(number, {"token": token})
        except OSError as error:
            return {"error": f"its task has ended: {error.strerror or error}"}
        return {"address": address}

    def _await_room(self) -> None:
        """Executors that Spark starts for this job need some seconds to come."""
        workers, deadline = self._request.workers, time.monotonic() + self._request.wait
        while (room := self._room()) < workers:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"Spark has room for {room} of {workers} tasks, after {self._request.wait:g} s.",
                    "A barrier stage begins with all of its tasks, so nothing was started.",
                    f"use -np {room}, ask for less with --cpus-per-worker, or wait longer with --wait."
                    if room
                    else "see the page of Spark's master: are its workers alive, and their cores and memory free?",
                )
            time.sleep(_PAUSE_SECONDS)

    def _room(self) -> int:
        """How many tasks can run at the same time on the executors that there are. Raises UsageError: none, ever."""
        context = self._spark._jsc.sc()  # what Spark's own check of barrier stages asks; Python has no name for it
        if context.isStopped():
            raise why_no_context(RuntimeError("its master did not answer, or has ended the application"), self._request)
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))

    def _begin(self) -> None:
        request = self._request
        self._stage = BarrierStage(self._spark, request.workers, self._address, request.link_seconds)

    def _heed(self) -> None:
        """Tell the launcher of the hosts, once all tasks have told where they are."""
        if self._stage is None:
            return
        self._stage.look()
        if self._agents or not (seats := self._stage.facts):
            return
        hosts: dict[str, list[dict[str, Any]]] = {}
        names = _names(seats)
        for seat in seats:
            hosts.setdefault(names[seat["executor"]], []).append(seat)
        for name, (first, *_) in hosts.items():
            problem = problem_of(first, f"Spark executor on {name}", _NOT_INSTALLED)
            if problem is not None:
                raise problem
        self._agents = {name: (first["number"], first["address"]) for name, (first, *_) in hosts.items()}
        gpus = {name: [gpu for seat in found for gpu in seat["gpus"]] for name, found in hosts.items()}
        self._say({"hosts": [[name, len(found), gpus[name]] for name, found in hosts.items()]})


def _names(seats: list[dict[str, Any]]) -> dict[str, str]:
    """Executor → what its host is called. Two executors may be on one machine."""
    names: dict[str, str] = {}
    for seat in seats:
        executor, host = seat["executor"], seat["host"]
        if executor not in names:
            names[executor] = f"{host}-{executor.rpartition(':')[2]}" if host in names.values() else host
    return names
