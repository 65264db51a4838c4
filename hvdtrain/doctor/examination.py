"""The whole examination, from top to bottom: log in, collect, compare, connect, measure."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from hvdtrain.doctor.addresses import Choice, choose_interfaces
from hvdtrain.doctor.checks_environment import environment_findings, process_findings
from hvdtrain.doctor.checks_files import data_findings, output_findings, working_dir_findings
from hvdtrain.doctor.checks_machine import machine_findings
from hvdtrain.doctor.checks_network import clock_findings, interface_findings, name_findings, twin_findings
from hvdtrain.doctor.checks_software import gpu_findings, horovod_findings, mpi_findings, version_findings
from hvdtrain.doctor.facts import FactsRequest
from hvdtrain.doctor.facts_software import FRAMEWORKS
from hvdtrain.doctor.findings import Finding, HostFacts
from hvdtrain.doctor.links import link_findings, measure_links
from hvdtrain.doctor.logging_in import log_in
from hvdtrain.doctor.measured_allreduce import Job, allreduce_findings, run_allreduce
from hvdtrain.doctor.question import DoctorRequest, DoctorResult
from hvdtrain.launch.ssh.agent_client import Agent, AgentError, ask_at_once

_PROBE_SECONDS = 60.0
_FACTS_SECONDS = 90.0
_SHORT_SECONDS = 10.0
_SHARED_DISK_SECONDS = 3.0
_CLOCK_QUESTIONS = 5


def examine(question: DoctorRequest, say: Callable[[str], None]) -> DoctorResult:
    """Examine all hosts. What cannot be examined is a finding; nothing is changed but token files that are removed.

    Args:
        question: what to examine.
        say: told what is going on, in a few words.
    """
    examined = DoctorResult()
    with ExitStack() as stack:
        say("logging in")
        agents = log_in(question, examined, stack)
        if not agents:
            return examined
        say("looking at versions, machines, files")
        _collect(agents, question, examined)
        _compare(question, examined)
        alive = {host: agent for host, agent in agents.items() if host in examined.facts}
        if len(alive) == len(question.hosts):
            try:
                _try_together(alive, question, examined, say)
            except AgentError as error:
                examined.findings.append(Finding("hosts", "fail", f"a host was lost: {error}", "examine it again."))
    return examined


def _collect(agents: Mapping[str, Agent], question: DoctorRequest, examined: DoctorResult) -> None:
    request = FactsRequest(
        frameworks=[question.framework] if question.framework else [],
        hosts=[host.name for host in question.hosts] if len(question.hosts) > 1 else [],
        data=question.data,
        output_dir=question.output_dir or "runs",
        probe_seconds=_PROBE_SECONDS,
    )
    answers = ask_at_once([(agent, "facts", request.as_json()) for agent in agents.values()], _FACTS_SECONDS)
    for host, answer in zip(agents, answers, strict=True):
        if isinstance(answer, AgentError):
            hint = f"run `{question.python} -m hvdtrain.doctor.facts` there."
            examined.findings.append(Finding("facts", "fail", f"not collected: {answer}", hint, host))
        else:
            examined.facts[host] = answer


def _compare(question: DoctorRequest, examined: DoctorResult) -> None:
    hosts: HostFacts = examined.facts
    if not hosts:
        return
    slots = {host.name: host.slots for host in question.hosts}
    asked = [question.framework] if question.framework else []
    examined.findings += [
        *version_findings(hosts),
        *horovod_findings(hosts, asked, question.workers),
        *mpi_findings(hosts),
        *gpu_findings(hosts),
        *machine_findings(hosts, {host: slots[host] for host in hosts}),
        *environment_findings(hosts, slots),
        *process_findings(hosts),
        *data_findings(hosts),
    ]
    if len(hosts) > 1:
        examined.findings += [*twin_findings(hosts), *name_findings(hosts), *working_dir_findings(hosts, os.getcwd())]


def _try_together(
    agents: Mapping[str, Agent], question: DoctorRequest, examined: DoctorResult, say: Callable[[str], None]
) -> None:
    """What takes all hosts: the folder, the clocks, the network, the allreduce."""
    examined.findings += _try_folder(agents, examined.facts, question)
    if twin_findings(examined.facts):
        return  # a machine has no link to itself
    chosen = choose_interfaces(examined.facts, question.nics)
    if len(agents) > 1 or question.nics:
        examined.findings += interface_findings(examined.facts, chosen, question.nics)
        if len(chosen) < len(agents):
            return
    if len(agents) > 1:
        examined.findings += clock_findings(_clocks(agents))
        say("connecting hosts")
        examined.links = measure_links(agents, chosen)
        examined.findings += link_findings(examined.links)
        if examined.links.broken:
            return  # workers would wait for each other until the start's deadline
    _try_allreduce(agents, chosen, question, examined, say)


def _try_folder(agents: Mapping[str, Agent], facts: HostFacts, question: DoctorRequest) -> list[Finding]:
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
            agent.ask("mark", _SHORT_SECONDS, step="make", **arguments)
            made[host] = arguments
        except AgentError as error:
            refused[host] = str(error)
    seen = {}
    for host, arguments in made.items():
        patience = {"wanted": len(made), "seconds": _SHARED_DISK_SECONDS}
        seen[host] = agents[host].ask("mark", _SHORT_SECONDS, step="look", **arguments, **patience)
    for host, arguments in made.items():  # what a lost agent made, it removes itself
        agents[host].ask("mark", _SHORT_SECONDS, step="remove", **arguments)
    return output_findings(facts, seen, refused, question.output_dir is not None)


def _clocks(agents: Mapping[str, Agent]) -> dict[str, float]:
    """Seconds by which each clock is ahead of this one: the question that came back fastest tells best (RFC 5905)."""
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
    agents: Mapping[str, Agent],
    chosen: Choice,
    question: DoctorRequest,
    examined: DoctorResult,
    say: Callable[[str], None],
) -> None:
    if not question.measure or question.workers < 2:
        return
    framework = _measurable(examined.facts, question, "gloo")
    if framework is None:
        examined.findings.append(_not_measured(examined.facts, question))
        return
    say("measuring allreduce")
    job = Job({host.name: host.slots for host in question.hosts}, framework, question.seconds, question.sizes)
    try:
        examined.allreduce = run_allreduce(agents, chosen, job)
    except AgentError as error:
        hint = "what it says is the cause; `hvdtrain bench allreduce` under your launcher tells more."
        examined.findings.append(Finding("allreduce", "fail", str(error), hint))
        return
    slowest = min(examined.links.rates.values()) if examined.links else None
    examined.findings += allreduce_findings(examined.allreduce, slowest)


def _not_measured(hosts: HostFacts, question: DoctorRequest) -> Finding:
    """The agents connect workers by Gloo; a Horovod that only knows MPI may be well all the same."""
    if _measurable(hosts, question, "mpi"):
        hint = "measure it under its mpirun: mpirun -np 2 python -m hvdtrain bench allreduce."
        return Finding("allreduce", "warn", "not measured: Horovod was built without Gloo", hint)
    hint = "mend first what is said of frameworks and horovod."
    return Finding("allreduce", "fail", "cannot be measured: no Horovod that works on every host", hint)


def _measurable(hosts: HostFacts, question: DoctorRequest, transport: str) -> str | None:
    """The framework to measure with: the one asked for, or the first that has such a Horovod on every host."""
    for name in [question.framework] if question.framework else FRAMEWORKS:
        found = [facts["frameworks"].get(name, {}) for facts in hosts.values()]
        if all((one.get("horovod") or {}).get(transport) for one in found):
            return name
    return None
