"""Whether this process may start a job, and of how many workers."""

from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology


def require_count(name: str, value: Any) -> int:
    """`value` as a number of workers. Raises UsageError: it is none; `name` is the argument's."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"{name} is {value!r}.", "A job has one worker or more.", f"give a whole number from 1 up: {name}=2."
        )
    return value


def require_alone(topology: Topology, call: str, command: str = "--task module:Class ...") -> None:
    """Raise UsageError in a worker of a job. `call`: what was called; `command`: of hvdtrain, in its place."""
    if topology.is_distributed:
        raise UsageError(
            f"{call} is called by rank {topology.rank} of {topology.size}, started by {topology.launcher}.",
            "Each worker would begin a job of its own, and an error in it would leave the other workers waiting.",
            f"start the command in the workers: python -m hvdtrain {command}; in a module that workers "
            'import, call it below `if __name__ == "__main__":`.',
        )
