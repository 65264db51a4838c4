"""The whole examination, from top to bottom: log in, collect, compare, connect, measure."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from hvdtrain.doctor.findings import Choice, DoctorRequest, DoctorResult, Finding, HostFacts, on_each_host
from hvdtrain.doctor.job_environment import processes_on_host, variables_on_host
from hvdtrain.doctor.machine import gpu_findings, machine_on_host
from hvdtrain.doctor.measured_allreduce import allreduce_findings, run_allreduce
from hvdtrain.doctor.network import clock_findings, interface_findings, name_findings, twin_findings
from hvdtrain.doctor.network_links import choose_interfaces, link_findings, measure_links
from hvdtrain.doctor.shared_files import data_findings, output_findings, working_dir_findings
from hvdtrain.doctor.software import FRAMEWORKS, frameworks_on_host, mpi_findings, version_findings
from hvdtrain.errors import UsageError
from hvdtrain.launch.ssh.agent_client import ask_at_once
from hvdtrain.launch.ssh.check import check_hosts, check_python_here
from hvdtrain.launch.ssh.command import SshOptions, SshReach
from hvdtrain.launch.ssh.host_addresses import is_this_machine
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.ssh.link import AgentError, HostLink

_START_SECONDS = 30.0
_FACTS_SECONDS = 90.0
_SHORT_SECONDS = 10.0
_SHARED_DISK_SECONDS = 3.0
_CLOCK_QUESTIONS = 5


def examine(request: DoctorRequest, say: Callable[[str], None]) -> DoctorResult:
    """Examine all hosts. What cannot be examined is a finding; nothing is changed but token files that are removed.

    `say` receives what is going on, in a few words.
    """
    result = DoctorResult()
    with ExitStack() as stack:
        say("logging in")
        agents = _log_in(request, result, stack)
        if not agents:
            return result
        say("looking at versions, machines, files")
        _collect(agents, request, result)
        _compare(request, result)
        alive = {host: agent for host, agent in agents.items() if host in result.facts}
        if len(alive) == len(request.hosts):
            try:
                _try_together(alive, request, result, say)
            except AgentError as error:
                result.findings.append(Finding("hosts", "fail", f"a host was lost: {error}", "examine it again."))
    return result


def _log_in(request: DoctorRequest, result: DoctorResult, stack: ExitStack) -> dict[str, HostLink]:
    """Agents on all hosts that can be used; findings on the others."""
    local_names = {host.name for host in request.hosts if host.is_local or is_this_machine(host.name)}
    others = [host.name for host in request.hosts if host.name not in local_names]
    refusals = [
        *check_hosts(others, request.ssh_port, python=request.python),
        *check_python_here(sorted(local_names), request.python),
    ]
    refused = {refusal.host: refusal for refusal in refusals}
    for host, refusal in refused.items():
        result.findings.append(Finding("ssh", "fail", refusal.message, f"{refusal.hint}.", host))
    usable = [host for host in request.hosts if host.name not in refused]
    started = stack.enter_context(
        HostAgents(usable, SshReach(_options(request), local_names.__contains__), None, _START_SECONDS)
    )
    try:
        started.connect_all()
    except UsageError as error:
        result.findings.append(Finding("ssh", "fail", f"the examination did not start: {error.fact}", error.hint))
    result.findings += [_not_started(host, reason, request) for host, reason in started.failures.items()]
    result.findings += _logged_in(started.links, others)
    return started.links


def _options(request: DoctorRequest) -> SshOptions:
    """Agents start in this folder with this PYTHONPATH, as workers do."""
    path = os.environ.get("PYTHONPATH", "")
    agent = "hvdtrain.doctor.host_agent"
    return SshOptions(request.python, request.ssh_port, agent=agent, folder=os.getcwd(), python_path=path)


def _logged_in(agents: Mapping[str, HostLink], others: Sequence[str]) -> list[Finding]:
    hint = "let its shell be silent when it is not interactive (.bashrc): scp, mpirun and horovodrun stumble over it."
    loud = [
        Finding("ssh", "warn", f"the shell prints at login: {agent.greeting[:80]!r}", hint, host)
        for host, agent in agents.items()
        if agent.greeting
    ]
    reached = [host for host in others if host in agents]
    known = [Finding("ssh", "ok", "answers without a question, its host key is known", "", h) for h in reached]
    return [*known, *loud]


def _not_started(host: str, reason: str, request: DoctorRequest) -> Finding:
    if "No module named" in reason:
        fact = f"{request.python} has no hvdtrain: {reason}"
        hint = "install hvdtrain into that interpreter on every host, or name another one with --python."
    else:
        fact, hint = f"the examination did not start: {reason}", f"try `ssh {host} {request.python} --version`."
    return Finding("ssh", "fail", fact, hint, host)


def _collect(agents: Mapping[str, HostLink], request: DoctorRequest, result: DoctorResult) -> None:
    wanted = {
        "frameworks": request.frameworks,
        "hosts": [host.name for host in request.hosts] if len(request.hosts) > 1 else [],
        "data": request.data,
        "output_dir": request.output_dir or "runs",
    }
    answers = ask_at_once([(agent, "facts", wanted) for agent in agents.values()], _FACTS_SECONDS)
    for host, answer in zip(agents, answers, strict=True):
        if isinstance(answer, AgentError):
            hint = f"run `{request.python} -m hvdtrain.doctor.host_facts` there."
            result.findings.append(Finding("facts", "fail", f"not collected: {answer}", hint, host))
        else:
            result.facts[host] = answer


def _compare(request: DoctorRequest, result: DoctorResult) -> None:
    hosts: HostFacts = result.facts
    if not hosts:
        return
    slots = {host: request.slots[host] for host in hosts}
    result.findings += [
        *version_findings(hosts),
        *on_each_host(hosts, partial(frameworks_on_host, frameworks=request.frameworks, workers=request.workers)),
        *mpi_findings(hosts),
        *gpu_findings(hosts),
        *on_each_host(hosts, partial(machine_on_host, workers=sum(slots.values())), slots=slots),
        *on_each_host(hosts, variables_on_host, slots=slots),
        *on_each_host(hosts, processes_on_host),
        *data_findings(hosts, [path for path in request.data if "://" in path]),
    ]
    if len(hosts) > 1:
        result.findings += [*twin_findings(hosts), *name_findings(hosts), *working_dir_findings(hosts, os.getcwd())]


def _try_together(
    agents: Mapping[str, HostLink], request: DoctorRequest, result: DoctorResult, say: Callable[[str], None]
) -> None:
    """What takes all hosts: the folder, the clocks, the network, the allreduce."""
    result.findings += _try_folder(agents, result.facts, request)
    if twin_findings(result.facts):
        return  # a machine has no link to itself
    chosen = choose_interfaces(result.facts, request.nics)
    if len(agents) > 1 or request.nics:
        result.findings += interface_findings(result.facts, chosen, request.nics)
        if len(chosen) < len(agents):
            return
    if len(agents) > 1:
        result.findings += clock_findings(_clocks(agents))
        say("connecting hosts")
        result.links = measure_links(agents, chosen)
        result.findings += link_findings(result.links)
        if result.links.broken:
            return  # workers would wait for each other until the start's deadline
    _try_allreduce(agents, chosen, request, result, say)


def _try_folder(agents: Mapping[str, HostLink], facts: HostFacts, request: DoctorRequest) -> list[Finding]:
    token = secrets.token_hex(8)
    refused: dict[str, str] = {}
    made: dict[str, dict[str, Any]] = {}
    for number, (host, agent) in enumerate(agents.items()):
        output = facts[host]["machine"]["output"]
        if output["obstacle"] is not None:
            refused[host] = ""
            continue
        arguments = {"folder": output["folder"], "token": f"{token}-{number}"}
        try:
            agent.ask("mark", _SHORT_SECONDS, **arguments)
            made[host] = arguments
        except AgentError as error:
            refused[host] = str(error)
    look = {"wanted": len(made), "seconds": _SHARED_DISK_SECONDS}
    seen = {host: agents[host].ask("look", _SHORT_SECONDS, **look, **arguments) for host, arguments in made.items()}
    for host, arguments in made.items():  # what a lost agent made, it removes itself
        agents[host].ask("unmark", _SHORT_SECONDS, **arguments)
    return output_findings(facts, seen, refused, request.output_dir is not None)


def _clocks(agents: Mapping[str, HostLink]) -> dict[str, float]:
    """Seconds by which each clock is ahead of this one: the request that came back fastest tells best (RFC 5905)."""
    offsets = {}
    for host, agent in agents.items():
        answers = []
        for _ in range(_CLOCK_QUESTIONS):
            wall, begin = time.time(), time.monotonic()
            there = float(agent.ask("clock", _SHORT_SECONDS))
            took = time.monotonic() - begin
            answers.append((took, there - (wall + took / 2)))
        offsets[host] = min(answers)[1]
    return offsets


def _try_allreduce(
    agents: Mapping[str, HostLink],
    chosen: Choice,
    request: DoctorRequest,
    result: DoctorResult,
    say: Callable[[str], None],
) -> None:
    if not request.measure or request.workers < 2:
        return
    framework = _measurable(result.facts, request, "gloo")
    if framework is None:
        result.findings.append(_not_measured(result.facts, request))
        return
    say("measuring allreduce")
    try:
        result.allreduce = run_allreduce(agents, chosen, framework, request)
    except AgentError as error:
        hint = "`hvdtrain bench allreduce` under your launcher tells more; busy hosts and slow networks need time."
        result.findings.append(Finding("allreduce", "fail", str(error), hint))
        return
    slowest = min(result.links.rates.values()) if result.links else None
    result.findings += allreduce_findings(result.allreduce, slowest, request.sizes)


def _not_measured(hosts: HostFacts, request: DoctorRequest) -> Finding:
    """The agents connect workers by Gloo; a Horovod that only knows MPI may be well all the same."""
    if _measurable(hosts, request, "mpi"):
        hint = "measure it under its mpirun: mpirun -np 2 python -m hvdtrain bench allreduce."
        return Finding("allreduce", "warn", "not measured: Horovod was built without Gloo", hint)
    hint = "mend first what is said of frameworks and horovod."
    return Finding("allreduce", "fail", "cannot be measured: no Horovod that works on every host", hint)


def _measurable(hosts: HostFacts, request: DoctorRequest, transport: str) -> str | None:
    """The framework to measure with: the one asked for, or the first that has such a Horovod on every host."""
    for name in request.frameworks or FRAMEWORKS:
        probes = [facts["frameworks"].get(name, {}) for facts in hosts.values()]
        if all((probe.get("horovod") or {}).get(transport) for probe in probes):
            return name
    return None
