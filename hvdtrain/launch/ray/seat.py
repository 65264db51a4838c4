"""The actor that holds a worker's place in a Ray cluster, and runs the agent of its node for the launcher.

Ray pickles the class by value, as a function makes it: so it runs on a node without hvdtrain, and can say so.
"""

import socket
import time
from typing import Any

from hvdtrain.launch.placed.host_facts import facts_of_python

ACCEPT_SECONDS = 60.0  # for the launcher to call the agent


def seat_class() -> Any:
    """The class of the actors, for `ray.remote`; imports hvdtrain's modules only in the node."""

    facts_of_host = facts_of_python()

    class Seat:
        def __init__(self, address: str) -> None:
            self._listener = socket.create_server((address, 0))

        def look(self, python: str | None) -> dict[str, Any]:
            """What `hvdtrain.launch.ray.places` is to know of this place. `python`: of the workers; None: Ray's."""
            import os

            import ray

            facts = facts_of_host(python) | {
                "node": ray.get_runtime_context().get_node_id(),
                "gpus": [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])],
                "address": list(self._listener.getsockname()[:2]),
            }
            # Ray's own settings for its workers: not for processes that compute.
            for name in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT"):
                os.environ.pop(name, None)
            return facts

        def answer(self) -> None:
            """What only an actor that lives does."""

        def serve(self, token: str, seconds: float) -> None:
            """Run an agent for the launcher that knows the token, until it hangs up."""
            from hvdtrain.launch.placed import seat_agent

            deadline = time.monotonic() + ACCEPT_SECONDS
            seat_agent.serve(self._listener, token, seconds, deadline)

    return Seat
