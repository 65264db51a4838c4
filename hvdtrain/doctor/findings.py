"""What the doctor says about one thing on one host, and how findings of many hosts become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]
Facts = Mapping[str, Any]
"""What `hvdtrain.doctor.facts` collects on one host."""

HostFacts = Mapping[str, Facts]
"""Host name → its facts, in the order in which the user named the hosts."""

_SEVERITY: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: of the check.
        status: "ok", "warn" (a job may run, worse than it could) or "fail" (a job will not run, or runs wrongly).
        fact: one sentence or a few words, what is the case.
        hint: one sentence, what to do; empty where nothing is to be done.
        host: on which host; "" for what holds for all hosts, or lies between them.
    """

    name: str
    status: Status
    fact: str
    hint: str = ""
    host: str = ""


def worst_status(findings: Iterable[Finding]) -> Status:
    """The most severe status; "ok" of none."""
    return max((finding.status for finding in findings), key=_SEVERITY.index, default="ok")


def merge_hosts(findings: Iterable[Finding], hosts: Iterable[str]) -> list[Finding]:
    """Findings that differ in the host only become one, of all those hosts; "" where that is every host.

    The order is that of each finding's first appearance.
    """
    every = list(hosts)
    places: dict[tuple[str, Status, str, str], list[str]] = {}
    for finding in findings:
        key = (finding.name, finding.status, finding.fact, finding.hint)
        places.setdefault(key, []).append(finding.host)
    return [
        Finding(*key, "" if "" in found or set(found) >= set(every) else ", ".join(found))
        for key, found in places.items()
    ]
