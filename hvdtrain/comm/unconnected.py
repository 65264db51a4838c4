"""A script with plain Horovod in a job whose launcher only starts processes: each would train alone, silently.

`import horovod.torch` leads here in environments that `make setup` has made (`horovod_wheel.start_up`).
"""

import os
import sys

from hvdtrain.comm.horovod_world import starts_processes_only
from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology

_LAUNCHERS = {"slurm": "Slurm", "torchrun": "torchrun, or whatever sets RANK and WORLD_SIZE,"}


def tell_if_unconnected() -> None:
    """Write what is wrong and what to do to standard error, on rank 0, where nothing connects the processes."""
    try:
        topology = detect_topology(os.environ)
    except UsageError:
        return  # variables of another meaning, perhaps: the script is not hvdtrain's
    if topology.is_root and topology.is_distributed and starts_processes_only(topology, os.environ):
        warning = UsageError(
            f"{_LAUNCHERS[topology.launcher]} has started {topology.size} processes ({topology.source['size']}), and "
            "nothing connects them for Horovod.",
            "Each of them will be rank 0 of 1, and train alone on all of the data.",
            "write `import hvdtrain.torch as hvd` (or hvdtrain.tensorflow), which connects them; or let "
            "the launcher start `python -P -m hvdtrain.comm.script_start python SCRIPT`; or use horovodrun. Where each "
            "process is to be alone, set HOROVOD_RANK=0 and HOROVOD_SIZE=1.",
        )
        sys.stderr.write(f"hvdtrain: {warning}\n")
        sys.stderr.flush()
