"""A rendezvous server for N clients, in a process of its own: `python -m benchmarks.clients.served store|meeting N`.

It prints where it listens, serves until its input ends, and prints as JSON what that has cost the process.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Final

from hvdtrain.comm.rendezvous.handshake import Keys, Meeting
from hvdtrain.comm.rendezvous.server import RendezvousServer

JOB: Final = "a job of light clients"
SECONDS: Final = 600.0


def main() -> None:
    what, size = sys.argv[1], int(sys.argv[2])
    meeting = Meeting(Keys(JOB, b""), size, time.monotonic() + SECONDS)
    greeter = meeting.greet if what == "meeting" else None
    with RendezvousServer("127.0.0.1", size, greeter=greeter) as server:
        meeting.store_variables = server.environment
        before = time.process_time()
        print(json.dumps({"port": server.port, "variables": server.environment}), flush=True)
        sys.stdin.read()
        seconds = time.process_time() - before
    print(json.dumps({"seconds": seconds, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
