"""A rendezvous server for N clients, in a process of its own: `python -m benchmarks.clients.served store|meeting N`.

It prints where it listens, serves until its input ends, and prints as JSON what that has cost the process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

from hvdtrain.comm.rendezvous.handshake import Keys, Meeting
from hvdtrain.comm.rendezvous.server import RendezvousServer

JOB: Final = "a job of light clients"
SECONDS: Final = 600.0


def most_memory(process: str) -> int:
    """The most bytes of memory that a process has had: unlike getrusage's, not those of the one that started it."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


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
    print(json.dumps({"seconds": seconds, "memory": most_memory("self")}))


if __name__ == "__main__":
    main()
