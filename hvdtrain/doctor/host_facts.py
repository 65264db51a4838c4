"""Everything about this host that the checks need: `python -m hvdtrain.doctor.host_facts` prints it as JSON.

The standard library only. Frameworks are imported in child processes with a deadline, so that an import that crashes or
hangs becomes a fact.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from hvdtrain.doctor.job_environment import environment_facts, job_processes
from hvdtrain.doctor.machine import gpu_facts, machine_facts
from hvdtrain.doctor.network import interfaces, resolved_names
from hvdtrain.doctor.shared_files import data_facts
from hvdtrain.doctor.software import framework_facts, software_facts

_PROBE_SECONDS, _DATA_SECONDS = 60.0, 10.0  # Deadlines of one framework's import, and of listing the data


def collect(
    frameworks: Sequence[str] = (), hosts: Sequence[str] = (), data: Sequence[str] = (), output_dir: str = "."
) -> dict[str, Any]:
    """All facts of this host, as JSON holds them; the keys are described where they are collected.

    Takes the time of the slowest import, seconds for TensorFlow.

    Args:
        frameworks: of "torch" and "tensorflow", those to import; empty: those that are installed.
        hosts: names to resolve.
        data: paths or globs of records to look at.
        output_dir: where runs are to be written.
    """
    return {
        "software": software_facts(),
        "frameworks": framework_facts(frameworks, _PROBE_SECONDS),
        "machine": machine_facts(output_dir),
        "gpu": gpu_facts(),
        "interfaces": interfaces(),
        "names": resolved_names([*hosts, socket.gethostname()]),
        "environment": environment_facts(os.environ),
        "processes": job_processes(),
        "data": data_facts(data, _DATA_SECONDS),
        "hostname": socket.gethostname(),
        "working_dir": os.getcwd(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(), indent=2) + "\n")
