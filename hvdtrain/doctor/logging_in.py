"""Start an agent on every host: here, or by ssh; what cannot be reached is a finding."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hvdtrain.doctor.findings import Finding
from hvdtrain.doctor.request import DoctorRequest, DoctorResult
from hvdtrain.errors import UsageError
from hvdtrain.launch.ssh.agent_client import Agent, HostAgents
from hvdtrain.launch.ssh.check import check_hosts
from hvdtrain.launch.ssh.command import SshOptions
from hvdtrain.launch.ssh.network import is_this_machine

_START_SECONDS = 30.0


def log_in(request: DoctorRequest, result: DoctorResult, stack: ExitStack) -> dict[str, Agent]:
    """Agents on all hosts that can be used; findings on the others."""
    own = {host.name for host in request.hosts if host.is_local or is_this_machine(host.name)}
    others = [host.name for host in request.hosts if host.name not in own]
    refused = {found.host: found for found in check_hosts(others, request.ssh_port, python=request.python)}
    for host, found in refused.items():
        result.findings.append(Finding("ssh", "fail", found.message, f"{found.hint}.", host))
    usable = [host for host in request.hosts if host.name not in refused]
    started = stack.enter_context(HostAgents(usable, _options(request), own.__contains__, None, _START_SECONDS))
    try:
        started.connect_all()
    except UsageError as error:
        result.findings.append(Finding("ssh", "fail", f"the examination did not start: {error.fact}", error.hint))
    result.findings += [_not_started(host, reason, request) for host, reason in started.failures.items()]
    agents = {host: Agent(link) for host, link in started.links.items()}
    result.findings += _logged_in(agents, others)
    return agents


def _options(request: DoctorRequest) -> SshOptions:
    """Agents start in this folder with this PYTHONPATH, as workers do."""
    path = os.environ.get("PYTHONPATH", "")
    agent = "hvdtrain.doctor.agent"
    return SshOptions(request.python, request.ssh_port, agent=agent, folder=os.getcwd(), python_path=path)


def _logged_in(agents: Mapping[str, Agent], others: Sequence[str]) -> list[Finding]:
    hint = "let its shell be silent when it is not interactive (.bashrc): scp, mpirun and horovodrun stumble over it."
    loud = [
        Finding("ssh", "warn", f"the shell prints at login: {agent.link.greeting[:80]!r}", hint, host)
        for host, agent in agents.items()
        if agent.link.greeting
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
