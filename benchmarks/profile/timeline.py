"""Horovod's timeline, added up: what a step's gradients do in the background."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

_OURS = ("hvdtrain.gradients", "hvdtrain_gradients")  # in torch, in TensorFlow, whose names hold no dots


class Messages(NamedTuple):
    """Of one step.

    Attributes:
        allreduces: messages.
        negotiating: seconds from the first rank's readiness to the last one's, added up.
        reducing: seconds in which they are summed.
        copying: of these, in copies into Horovod's fusion buffer and out of it.
    """

    allreduces: float
    negotiating: float
    reducing: float
    copying: float


def read(file: Path, steps: int) -> Messages:
    """What the timeline of a run with so many steps holds of gradients."""
    return added_up(json.loads(file.read_text()), steps)


def added_up(events: list[dict[str, Any]], steps: int) -> Messages:
    """The same, from its events: each tensor is a process, whose events begin (B) and end (E) nested."""
    tensors = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    open_: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    micros: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        name = tensors.get(event["pid"], "")
        if not any(ours in name for ours in _OURS):
            continue
        if event["ph"] == "B":
            open_[event["pid"]].append(event)
        elif event["ph"] == "E" and open_[event["pid"]]:
            begun = open_[event["pid"]].pop()
            micros[begun["name"]] += event["ts"] - begun["ts"]
            counts[begun["name"]] += 1
    copies = sum(micros[name] for name in micros if name.startswith("MEMCPY"))
    seconds = (micros["NEGOTIATE_ALLREDUCE"], micros["ALLREDUCE"], copies)
    return Messages(counts["ALLREDUCE"] / steps, *(1e-6 * part / steps for part in seconds))
