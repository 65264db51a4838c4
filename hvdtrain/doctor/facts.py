"""Everything about this host that the checks need: `python -m hvdtrain.doctor.facts` prints it as JSON.

The standard library only. Frameworks are imported in child processes with a deadline, so that an import that crashes or
hangs becomes a fact.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdtrain.doctor.environment import environment_facts, job_processes
from hvdtrain.doctor.files import data_facts
from hvdtrain.doctor.gpu import gpu_facts
from hvdtrain.doctor.machine import machine_facts
from hvdtrain.doctor.network import interfaces, resolved_names
from hvdtrain.doctor.software import framework_facts, software_facts


@dataclass(frozen=True, slots=True)
class FactsRequest:
    """What to collect.

    Attributes:
        frameworks: of "torch" and "tensorflow", those to import; empty: those that are installed.
        hosts: names to resolve.
        data: paths or globs of records to look at.
        output_dir: where runs are to be written.
        probe_seconds: deadline of one framework's import.
        data_seconds: deadline of listing the data.
    """

    frameworks: Sequence[str] = ()
    hosts: Sequence[str] = ()
    data: Sequence[str] = ()
    output_dir: str = "."
    probe_seconds: float = 60.0
    data_seconds: float = 10.0

    def as_json(self) -> dict[str, Any]:
        """For a `FactsRequest(**...)` on another host."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one host, each as JSON holds it; the keys are described where they are collected."""

    software: dict[str, Any]
    frameworks: dict[str, Any]
    machine: dict[str, Any]
    gpu: dict[str, Any]
    interfaces: list[dict[str, Any]]
    names: dict[str, Any]
    environment: dict[str, str]
    processes: list[dict[str, Any]]
    data: list[dict[str, Any]]
    hostname: str = field(default_factory=socket.gethostname)
    working_dir: str = field(default_factory=os.getcwd)


def collect(request: FactsRequest) -> dict[str, Any]:
    """All facts of this host. Takes the time of the slowest import, seconds for TensorFlow."""
    return asdict(
        Facts(
            software=software_facts(),
            frameworks=framework_facts(request.frameworks, request.probe_seconds),
            machine=machine_facts(request.output_dir),
            gpu=gpu_facts(),
            interfaces=interfaces(),
            names=resolved_names([*request.hosts, socket.gethostname()]),
            environment=environment_facts(os.environ),
            processes=job_processes(),
            data=data_facts(request.data, request.data_seconds),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(FactsRequest()), indent=2) + "\n")
