"""The launcher's process that talks to Ray: it holds the placement groups, and an actor in them for each node.

    python -P -m hvdtrain.launch.ray.broker

A process of its own: Ray writes to standard error, has handlers of signals, waits for minutes for what is not there,
and ends a process whose cluster is gone. It reads lines of JSON from standard input and writes such lines.

    launcher → broker   the fields of a `Request`, then calls: {"call": HOST, "number": N, "token": T}
    broker → launcher   {"hosts": [[NAME, SLOTS, GPUS], …]} after each change, {"complaint": TEXT},
                        {"number": N, "address": [IP, PORT]} or {"number": N, "error": TEXT},
                        {"refused": [FACT, CONFLICT, HINT]}

When its input ends, it removes the actors and placement groups, and ends.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.ray.places import Places
from hvdtrain.launch.ray.request import Request

_LOOK_SECONDS = 0.5  # between two looks at the cluster


def main() -> int:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    has_places = threading.Event()
    threading.Thread(target=_read, args=(lines, has_places), daemon=True).start()
    request, say = Request(**json.loads(lines.get())), _teller()
    import ray

    try:
        _connect(ray, request.address)
        with Places(ray, request, say) as places:
            places.take_first()
            has_places.set()
            _serve(places, lines, say)
    except UsageError as error:
        say({"refused": [error.fact, error.conflict, error.hint]})
    finally:
        ray.shutdown()
    return 0


def _read(lines: "queue.SimpleQueue[str]", has_places: threading.Event) -> None:
    """An empty line is the end. While places are awaited, nobody would read it; and what a process has asked of Ray
    ends with it in any case."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    if not has_places.is_set():
        os._exit(0)


def _teller() -> Callable[[dict[str, Any]], None]:
    """What sends messages to the launcher. From now on only it writes there: Ray prints what becomes of its nodes."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    return say


def _serve(places: Places, lines: "queue.SimpleQueue[str]", say: Callable[[dict[str, Any]], None]) -> None:
    while True:
        places.look()
        try:
            line = lines.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if not line:
            return
        order = json.loads(line)
        say({"number": order["number"], **places.call(order["call"], order["token"])})


def _connect(ray: Any, address: str | None) -> None:
    """As `ray.init`, which starts a cluster on this machine if there is none at no address."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        ray.init(address or os.environ.get("RAY_ADDRESS") or "auto", **quiet)
        return
    except ConnectionError as error:
        if address is not None or os.environ.get("RAY_ADDRESS"):
            raise UsageError(
                f"There is no Ray cluster at {address or os.environ['RAY_ADDRESS']}: {_first_line(error)}.",
                "The workers are to run there.",
                "see `ray status` on one of its machines, or leave --address out.",
            ) from error
    except RuntimeError as error:
        raise UsageError(
            f"The Ray cluster refuses this process: {_first_line(error)}.",
            "Launcher and cluster need the same versions of Ray and of Python.",
            "run `hvdtrain launch ray` in the environment from which the cluster was started.",
        ) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # whoever wants to report usage says so
    ray.init("local", include_dashboard=False, **quiet)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
