"""What the doctor is asked, and what it has found."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.doctor.findings import Finding
from hvdtrain.doctor.links import Links
from hvdtrain.launch.hosts.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What to examine.

    Attributes:
        hosts: with the slots that a job would use.
        framework: "torch", "tensorflow", or None for what is installed.
        nics: network interfaces to use, in order of preference; empty: the one that hosts know each other by.
        data: paths or globs that every host should see.
        output_dir: where runs are to be written; None: ./runs, which is not insisted on.
        python: interpreter on the hosts.
        ssh_port: None: what ssh's own configuration says.
        measure: whether links and allreduce are measured.
        seconds: about how long the measurement of the allreduce may take.
        sizes: of the allreduce, as `hvdtrain bench allreduce --sizes` takes them.
    """

    hosts: tuple[Host, ...]
    framework: str | None = None
    nics: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    output_dir: str | None = None
    python: str = sys.executable
    ssh_port: int | None = None
    measure: bool = True
    seconds: float = 3.0
    sizes: str | None = None

    @property
    def workers(self) -> int:
        """Of the whole job."""
        return sum(host.slots for host in self.hosts)


@dataclass(slots=True)
class DoctorResult:
    """What was found; `findings` in the order of the report."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    links: Links | None = None
    allreduce: Any = None
