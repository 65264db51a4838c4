"""Wishes that a launcher cannot fulfil are refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterable

from hvdtrain.errors import UsageError
from hvdtrain.launch.job import JobSpec

_OF_OUR_SUPERVISOR = ("max_restarts", "backoff", "min_workers", "max_workers")


def reject_unsupported(job: JobSpec, launcher: str, wishes: Iterable[str]) -> None:
    """Raise UsageError if the job has one of `wishes`.

    Args:
        job: the job.
        launcher: for the message.
        wishes: fields of JobSpec that this launcher has nothing for.
    """
    for wish in wishes:
        default = JobSpec.__dataclass_fields__[wish].default
        if getattr(job, wish) != default:
            flag = "--" + wish.replace("_", "-")
            raise UsageError(
                f"The job has {flag}.",
                f"{launcher} has nothing for that.",
                f"leave {flag} out, or use {_others(wish)}.",
            )


def _others(wish: str) -> str:
    if wish in _OF_OUR_SUPERVISOR:
        return "`hvdtrain launch ssh`, which watches over workers on any hosts and starts them again"
    return "another launcher: `hvdtrain launch --help` tells what each can do"


def require_hosts(job: JobSpec, launcher: str) -> None:
    """Raise UsageError unless the job names its hosts, none of them by an IPv6 address."""
    if not job.hosts:
        raise UsageError(
            "The job names no hosts.", f"{launcher} does not find any itself.", "name them, e.g. -H node1:4,node2:4."
        )
    address = next((host.name for host in job.used_hosts if host.is_ipv6), None)
    if address is not None:
        raise UsageError(
            f"Host {address} is an IPv6 address.",
            f"{launcher} separates hosts and slots by colons and cannot take it.",
            "give the host a name, in DNS or in /etc/hosts on all hosts.",
        )
