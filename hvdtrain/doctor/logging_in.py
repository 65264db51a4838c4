"""Start an agent on every host: here, or by ssh; what cannot be reached is a finding."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hvdtrain.doctor.agent_client import Agent, AgentError, local_command, ssh_command
from hvdtrain.doctor.findings import Finding
from hvdtrain.doctor.question import DoctorRequest, DoctorResult
from hvdtrain.launch.hosts import Host
from hvdtrain.launch.ssh.check import check_hosts
from hvdtrain.launch.ssh.interface import is_own_address

_START_SECONDS = 30.0


def log_in(question: DoctorRequest, examined: DoctorResult, stack: ExitStack) -> dict[str, Agent]:
    """Agents on all hosts that can be used; findings on the others."""
    own = {host.name for host in question.hosts if is_here(host)}
    others = [host.name for host in question.hosts if host.name not in own]
    refused = {found.host: found for found in check_hosts(others, question.ssh_port, python=question.python)}
    for host, found in refused.items():
        examined.findings.append(Finding("ssh", "fail", found.message, f"{found.hint}.", host))
    usable = [host.name for host in question.hosts if host.name not in refused]
    agents = _start_agents(usable, own, question, examined, stack)
    examined.findings += _logged_in(agents, others)
    return agents


def _start_agents(
    usable: Sequence[str], own: set[str], question: DoctorRequest, examined: DoctorResult, stack: ExitStack
) -> dict[str, Agent]:
    """All are started before the first is waited for."""
    agents: dict[str, Agent] = {}
    failures: dict[str, str] = {}
    for host in usable:
        try:
            agents[host] = Agent(host, _command(host, host in own, question))
            stack.callback(agents[host].close)  # last in, first out: all hang up before the first is waited for
        except AgentError as error:
            failures[host] = str(error)
    for agent in agents.values():
        stack.callback(agent.hang_up)
    for host, agent in agents.items():
        try:
            agent.greet(_START_SECONDS)
        except AgentError as error:
            failures[host] = str(error)
    examined.findings += [_not_started(host, reason, question) for host, reason in failures.items()]
    return {host: agent for host, agent in agents.items() if host not in failures}


def _logged_in(agents: Mapping[str, Agent], others: Sequence[str]) -> list[Finding]:
    hint = "let its shell be silent when it is not interactive (.bashrc): scp, mpirun and horovodrun stumble over it."
    loud = [
        Finding("ssh", "warn", f"the shell prints at login: {agent.greeting[0][:80]!r}", hint, host)
        for host, agent in agents.items()
        if agent.greeting
    ]
    reached = [host for host in others if host in agents]
    known = [Finding("ssh", "ok", "answers without a question, its host key is known", "", h) for h in reached]
    return [*known, *loud]


def is_here(host: Host) -> bool:
    """Whether a host is this machine, so that nothing needs ssh."""
    if host.is_local or host.name == socket.gethostname():
        return True
    try:
        answers = socket.getaddrinfo(host.name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return False  # ssh's own configuration may know it
    return all(is_own_address(str(answer[4][0])) for answer in answers)


def _command(host: str, here: bool, question: DoctorRequest) -> list[str]:
    if here:
        return local_command(question.python)
    path = os.environ.get("PYTHONPATH")
    return ssh_command(host, question.ssh_port, question.python, os.getcwd(), path)


def _not_started(host: str, reason: str, question: DoctorRequest) -> Finding:
    if "No module named" in reason:
        fact = f"{question.python} has no hvdtrain: {reason}"
        hint = "install hvdtrain into that interpreter on every host, or name another one with --python."
    else:
        fact, hint = f"the examination did not start: {reason}", f"try `ssh {host} {question.python} --version`."
    return Finding("ssh", "fail", fact, hint, host)
