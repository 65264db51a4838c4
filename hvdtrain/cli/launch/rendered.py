"""Print or run what a launcher's renderer made of a job."""

from __future__ import annotations

import os
import sys

from hvdtrain.errors import UsageError
from hvdtrain.launch.execute import execute
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.topology import detect_topology


def print_or_execute(plan: LaunchPlan, dry_run: bool, overwrite: bool = False) -> int:
    """Print the plan as a script, or become its command. Errors as `hvdtrain.launch.execute.execute`."""
    if dry_run:
        sys.stdout.write(plan.describe())
        return 0
    require_outside_job()
    return execute(plan, overwrite)


def require_outside_job() -> None:
    """Raise UsageError in a worker: else each worker of a job would start a job of its own."""
    topology = detect_topology(os.environ)
    if topology.is_distributed:
        raise UsageError(
            f"This is itself rank {topology.rank} of {topology.size}, started by {topology.launcher}.",
            "Every rank would launch a job of its own.",
            "call `hvdtrain launch` once, outside of srun, mpirun and the like.",
        )
