"""Start `hvdtrain bench allreduce` on the hosts through their agents, and evaluate its result.

The agents start the workers as torchrun would (RANK, WORLD_SIZE, MASTER_ADDR), and hvdtrain's own rendezvous connects
them: no launcher is needed, the secret stays off command lines, and the workers end with their agent.
"""

import json
import secrets
import selectors
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.doctor.allreduce_times import RingModel
from hvdtrain.doctor.findings import Choice, DoctorRequest, Finding
from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import ERR, WorkerGroup
from hvdtrain.launch.ssh.agent_client import RemoteWorkerGroup
from hvdtrain.launch.ssh.link import AgentError, HostLink
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.topology.source_address import LOOPBACK
from hvdtrain.units import in_bytes, in_rate, in_seconds

_MARGIN_SECONDS = 15.0
_START_SECONDS = 60.0
_OTHERS_SECONDS = 3.0  # after the first failure
_GRADIENTS = 100 * 10**6
_TELLING_BYTES = 2**20  # of smaller ones, the latency is all that shows
_HALF = 0.5
_BAD_FIT = 0.5  # Deviation from which on the model's figures say little: a time is twice what the ring's line says


def run_allreduce(agents: Mapping[str, HostLink], chosen: Choice, framework: str, request: DoctorRequest) -> Any:
    """The report of `hvdtrain bench allreduce`, with the workers, time and sizes of `request`.

    The `agents` are of all hosts; where there is one host only, the `chosen` interfaces are not asked.

    Raises AgentError: it did not end well; the text is the last words of the worker that failed.
    """
    hosts = [host for host in agents if request.slots[host]]
    meeting = chosen[hosts[0]]["address"] if len(hosts) > 1 else LOOPBACK
    port = agents[hosts[0]].ask("port", _MARGIN_SECONDS, address=meeting)
    common = {
        "WORLD_SIZE": str(request.workers),
        "MASTER_ADDR": meeting,
        "MASTER_PORT": str(port),
        "HVDTRAIN_SECRET": secrets.token_hex(16),
        "HVDTRAIN_START_TIMEOUT": str(int(_START_SECONDS)),
        "OMP_NUM_THREADS": "1",
        "GROUP_WORLD_SIZE": str(len(hosts)),
    }
    command = ["bench", "allreduce", "--json", "--framework", framework, "--seconds", str(request.seconds)]
    command += ["--sizes", request.sizes] if request.sizes else []
    workers: dict[int, WorkerState] = {}
    groups = []
    token = secrets.token_hex(16)
    for node, host in enumerate(hosts):
        ranks = list(range(len(workers), len(workers) + request.slots[host]))
        variables = {**common, "GROUP_RANK": str(node)}
        if len(hosts) > 1:
            variables["HOROVOD_GLOO_IFACE"] = chosen[host]["name"]
        order = {"token": f"{token}-{node}", "command": command, "ranks": ranks, "variables": variables}
        groups.append(RemoteWorkerGroup(agents[host], ranks, order))
        workers |= {rank: WorkerState(rank, host) for rank in ranks}
    said = _output(groups, workers, _START_SECONDS + 3 * request.seconds + _MARGIN_SECONDS)
    return json.loads(said.strip().splitlines()[-1])


class _Events:
    """Notes what workers do; collects the standard output of rank 0."""

    def __init__(self, workers: Mapping[int, WorkerState]) -> None:
        self.output = b""
        self._workers = workers

    def started(self, rank: int, process: int) -> None:
        self._workers[rank].process = process

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        if stream == ERR:
            self._workers[rank].tail.add(stream, data)
        elif rank == 0:
            self.output += data

    def told(self, rank: int, message: Mapping[str, Any]) -> None:
        raise NotImplementedError("these workers have no channel")

    def ended(self, rank: int, end: WorkerExit) -> None:
        self._workers[rank].end = end


def _output(groups: Sequence[WorkerGroup], workers: Mapping[int, WorkerState], seconds: float) -> str:
    """What rank 0 prints until all have ended well; AgentError if one fails, or not all end within `seconds`."""
    events, deadline = _Events(workers), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        try:
            for group in groups:
                group.watch(selector, events)
            while any(worker.end is None for worker in workers.values()) and time.monotonic() < deadline:
                for key, _ in selector.select(deadline - time.monotonic()):
                    key.data()
                if any(worker.end and worker.end.failed for worker in workers.values()):
                    deadline = min(deadline, time.monotonic() + _OTHERS_SECONDS)  # they would wait for it
        except UsageError as error:
            raise AgentError(error.fact) from error
    for group in groups:
        group.kill()
    _require_success([worker for worker in workers.values() if worker.end is None or worker.end.failed], seconds)
    return events.output.decode(errors="replace")


def _require_success(failed: Sequence[WorkerState], seconds: float) -> None:
    if not failed:
        return
    # One that runs tells least; of the others, one that was killed or lost another one knows no cause.
    root = min(failed, key=lambda each: (each.end is None, each.code < 0 or each.is_consequence, each.rank))
    if root.end is None:
        how = f"was still running after {seconds:g} s"
    else:
        how = f"did not end well ({root.end.lost or f'exit code {root.code}'})"
    words = " ".join(line.strip() for line in root.tail.text()[-4:])[-600:]
    raise AgentError(f"rank {root.rank} on {root.host} {how}: {words or 'it has said nothing'}")


def allreduce_findings(report: Any, slowest_link: float | None, sizes: str | None = None) -> list[Finding]:
    """What the measured allreduce says.

    Args:
        slowest_link: bytes/s between hosts, by streams; None for one host.
        sizes: those that were asked for; None: the usual ones.
    """
    model, largest = report["model"], max(report["sizes"], key=lambda point: point["bytes"])
    taken = f"{in_bytes(largest['bytes'])} take {in_seconds(largest['seconds'])}"
    if model is None or model["bandwidth"] is None or largest["bytes"] < _TELLING_BYTES:
        if sizes:
            hint = "leave out --sizes: those that were given say too little about larger ones."
        else:
            hint = "measure again with more --seconds, when these hosts do nothing else."
        return [Finding("allreduce", "warn", f"too few sizes could be measured in time; {taken}", hint)]
    bandwidth, good = model["bandwidth"], model["deviation"] <= _BAD_FIT
    ring = RingModel(report["workers"], model["latency"], bandwidth)
    fit = f"within {model['deviation']:.0%}" if good else f"but times are up to {model['deviation']:.0%} off that"
    fact = (
        f"{ring.workers} workers, {report['transport']}: {in_rate(bandwidth)} a link and {in_seconds(ring.latency)} a "
        f"step of the ring, {fit}; {taken}, 100 MB of gradients {in_seconds(_gradient_seconds(ring, report['sizes']))}"
    )
    if not good:
        hint = "measure again with more --seconds, when these hosts and their network do nothing else."
        return [Finding("allreduce", "warn", fact, hint)]
    if slowest_link is not None and bandwidth < _HALF * slowest_link:
        hint = (
            f"single streams reach {in_rate(slowest_link)} on the slowest link: look for busy cores, several workers "
            "that share one interface, or another network than the one --nic names."
        )
        return [Finding("allreduce", "warn", fact, hint)]
    return [Finding("allreduce", "ok", fact)]


def _gradient_seconds(ring: RingModel, sizes: Sequence[Mapping[str, Any]]) -> float:
    """Of `_GRADIENTS` bytes, by the model's line, raised so far that no smaller size was measured to take longer."""
    times: dict[int, float] = {point["bytes"]: point["seconds"] for point in sizes if point["bytes"] <= _GRADIENTS}
    above = max((seconds - ring.seconds(size) for size, seconds in times.items()), default=0.0)
    return ring.seconds(_GRADIENTS) + max(0.0, above)
