"""The doctor's process on one host: answers requests, one JSON object a line, until its standard input ends.

    {"do": "facts", ...}            what `hvdtrain.doctor.facts.collect` finds
    {"do": "clock"}                 this host's time, seconds since the epoch
    {"do": "mark", ...}             make, look for, or remove token files in the output folder
    {"do": "listen", ...}           accept the other agents on one address; says the port
    {"do": "connect", ...}          reach another agent's port
    {"do": "send", ...}             stream bytes to another agent for a while
    {"do": "received", ...}         what arrived of a stream
    {"do": "port", ...}             a free port, for rank 0 of a measurement
    {"do": "workers", ...}          run the ranks of a measurement that belong to this host

Answers {"ok": ...} or {"error": text}. It runs with the rights of the user who called the doctor, and listens only
on the address it was told, to peers that know the examination's token.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from hvdtrain.doctor.agent_folder import TokenFiles
from hvdtrain.doctor.agent_streams import StreamServer, reach, send
from hvdtrain.doctor.agent_workers import free_port, run_workers
from hvdtrain.doctor.facts import FactsRequest, collect

HELLO = "hvdtrain doctor agent 1"
"""First line of an agent; what a login shell prints before it is no part of the protocol."""

IDLE_SECONDS = 300.0
"""An agent that is asked nothing for this long ends."""

_LINE_BYTES = 2**20


def main() -> int:
    """Answer until standard input ends; returns the exit code."""
    _write(HELLO)
    with StreamServer() as streams, TokenFiles() as tokens:
        actions = _actions(streams, tokens)
        for line in _lines():
            _write(json.dumps(_answer(actions, json.loads(line))))
    return 0


def _actions(streams: StreamServer, tokens: TokenFiles) -> dict[str, Callable[..., Any]]:
    return {
        "facts": lambda **request: collect(FactsRequest(**request)),
        "clock": time.time,
        "mark": tokens.mark,
        "listen": streams.listen,
        "connect": reach,
        "send": send,
        "received": streams.received,
        "port": free_port,
        "workers": run_workers,
    }


def _answer(actions: dict[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": actions[request.pop("do")](**request)}
    except (OSError, ValueError, LookupError) as error:
        return {"error": str(error) or type(error).__name__}


def _lines() -> Iterator[bytes]:
    """Requests. Read without Python's buffer, so that `run_workers` can see the end of standard input."""
    rest = b""
    while select.select([0], [], [], IDLE_SECONDS)[0] and (data := os.read(0, 65536)):
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
        if len(rest) > _LINE_BYTES:
            raise ValueError("a request is too long")


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
