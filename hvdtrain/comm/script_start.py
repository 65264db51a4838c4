"""Start a user's script that does not use our rendezvous, so that its `hvd.init()` finds all ranks:

    python -P -m hvdtrain.comm.script_start COMMAND...

with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun sets them, or in the tasks of a Slurm step.

The ranks meet first; then the command runs with Horovod's variables. Rank 0 serves Horovod's store beside it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.comm.rendezvous.connect import connected_ranks
from hvdtrain.errors import HvdtrainError
from hvdtrain.failure_record import write_failure
from hvdtrain.topology import detect_topology

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_PORT = "MASTER_PORT"


def run_script(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Meet the other ranks and run `command`; returns its exit code, or minus the signal that ended it.

    Ranks other than 0 become the command, and do not return.

    Raises:
        UsageError: the variables do not tell where to meet.
        HvdtrainError: the ranks did not find each other in time.
    """
    ours = {**environ, _PORT: _next_port(environ.get(_PORT, ""))}
    topology = detect_topology(ours)
    with connected_ranks(topology, ours):
        variables = {name: value for name, value in ours.items() if name != _PORT}
        if _PORT in environ:
            variables[_PORT] = environ[_PORT]
        if not topology.is_root:
            os.execvpe(command[0], list(command), variables)
        child = subprocess.Popen(list(command), env=variables)  # beside the store
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _frame: child.send_signal(number))
        return child.wait()


def _next_port(port: str) -> str:
    """Another port for the rendezvous: MASTER_PORT stays free for what the script may use beside Horovod."""
    return str(int(port) + (1 if int(port) < 65_535 else -1)) if port.isascii() and port.isdigit() else port


def main(argv: Sequence[str]) -> int:
    """Exit as the command does."""
    try:
        code = run_script(argv, os.environ)
    except HvdtrainError as error:
        rank = os.environ.get("RANK", "")
        write_failure("error", int(rank) if rank.isdecimal() else 0, str(error), error.exit_code)
        sys.stderr.write(f"hvdtrain: {error}\n")
        return error.exit_code
    if code >= 0:
        return code
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)  # so that the parent process sees the same end
    return 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
