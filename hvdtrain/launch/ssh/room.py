"""How many workers the hosts have room for that are there and not left out, and what is said where they are fewer."""

from collections.abc import Sequence

from hvdtrain.launch.hosts.host import Host, total_slots
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.supervisor.diagnosis import JobOutcome

_WRONG = "a worker there has computed wrongly"


def workers_on(job: JobSpec, hosts: Sequence[Host], restarts: int) -> int:
    """How many workers to start on those hosts that are there; 0 where they are too few. As many as were asked for; in
    a restart as many as there is room for, between --min-workers and --max-workers."""
    slots = total_slots(hosts)
    if slots >= job.np:
        return min(slots, job.max_workers or job.np) if restarts else job.np
    return slots if slots >= (job.min_workers or job.np) else 0


def too_few(job: JobSpec, agents: HostAgents, may_get_others: bool) -> JobOutcome:
    """The outcome of a restart for which too few places are left. `may_get_others`: other hosts may be named later."""
    slots, least = total_slots(agents.usable), job.min_workers or job.np
    left_out = _left_out(agents)
    reasons = [f"{name}: {reason}" for name, reason in agents.failures.items()]
    reasons += [f"{name} is left out: {_WRONG}" for name in left_out]
    left = f"{slots} slot{'s are' if slots != 1 else ' is'} left"
    text = f"hvdtrain launch: {left}, {least} workers are needed."
    if reasons:
        text += f" {'; '.join(reasons)}."
    else:
        text += "\nHINT: --min-workers lets a job go on with fewer, and on Ray --wait SECONDS lets it wait for places."
    if left_out:
        names, least_too = ", ".join(left_out), f" --min-workers {slots}" if job.min_workers else ""
        fewer = f", or without it and with -np {slots}{least_too}" if slots else ""
        text += f"\nHINT: start the job again with --resume auto and other hosts in place of {names}{fewer}."
    return JobOutcome(1, message=text, may_restart=may_get_others or bool(agents.failures) or not left_out)


def change_of_size(job: JobSpec, np: int, agents: HostAgents, restarts: int) -> str:
    """What to say of a start with `np` workers; empty where all hosts are used, by as many workers as asked for."""
    left_out = _left_out(agents)
    if np == job.np and not agents.failures and not left_out:
        return ""
    reasons = [f"; {name} is missing: {reason}" for name, reason in agents.failures.items()]
    reasons += [f"; {name} is left out: {_WRONG}" for name in left_out]
    verb = "go on" if restarts else "begin"
    return f"hvdtrain launch: {verb} with {np} worker{'s' if np > 1 else ''}, of {job.np} asked for{''.join(reasons)}."


def _left_out(agents: HostAgents) -> list[str]:
    return [host.name for host in agents.hosts if host.name in agents.left_out]
