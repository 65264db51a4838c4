"""The task that holds a worker's place in a Spark cluster. One on each executor runs the agent for the launcher.

Spark pickles the function by value, as a function makes it: so it runs on an executor without hvdtrain, and can say so.
It calls the broker, and speaks in lines of JSON:

    task → broker   {"secret": S, "number": PARTITION, "executor": IP:PORT, "host": NAME, "address": [IP, PORT], …}
    broker → task   {"token": T}: run an agent for the launcher that knows the token

The task ends when that connection ends.
"""

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hvdtrain.launch.placed.host_facts import facts_of_python

ACCEPT_SECONDS = 60.0  # for the launcher to call the agent
_CALL_SECONDS = 30.0  # for the broker to be called


def seat_task(address: tuple[str, int], secret: str, seconds: float) -> Callable[[Iterable[int]], Iterator[int]]:
    """The function of all tasks of the stage; imports hvdtrain's modules only in the task. `address` is the broker's,
    `seconds` as of an `Agent`."""
    facts_of_host = facts_of_python()

    def hold(numbers: Iterable[int]) -> Iterator[int]:
        import json
        import os

        from pyspark import BarrierTaskContext

        context: Any = BarrierTaskContext.get()
        number = context.partitionId()
        # Spark's own, for its worker: not for processes that compute.
        for name in ("OMP_NUM_THREADS", "PYTHON_WORKER_FACTORY_SECRET"):
            os.environ.pop(name, None)
        with socket.create_connection(address, _CALL_SECONDS) as broker:
            broker.settimeout(None)
            broker.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with socket.create_server((broker.getsockname()[0], 0)) as listener:
                gpus = context.resources().get("gpu")
                facts = facts_of_host() | {
                    "secret": secret,
                    "number": number,
                    "executor": context.getTaskInfos()[number].address,
                    "host": socket.gethostname(),
                    "address": listener.getsockname()[:2],
                    "gpus": list(gpus.addresses) if gpus is not None else [],
                }
                broker.sendall(json.dumps(facts).encode() + b"\n")
                for line in broker.makefile():
                    from hvdtrain.launch.placed import seat_agent

                    deadline = time.monotonic() + ACCEPT_SECONDS
                    seat_agent.serve(listener, json.loads(line)["token"], seconds, deadline)
        return iter(numbers)

    return hold
