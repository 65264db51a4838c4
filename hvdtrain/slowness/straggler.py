"""A rank or a link that keeps the others waiting, in words for people and as JSON for programs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from hvdtrain.slowness.causes import Cause


@dataclass(frozen=True)
class Straggler:
    """A rank, or a link between hosts, for which the others wait."""

    rank: int | None  # which one; None: a link, and it cannot be told whose
    host: str  # where it runs, "" where that is not known
    share_of_time_others_waited: float  # of the others' time, in the windows in which it was slow
    slower_by: float  # by which share its own time is longer than the median of the others'; 0 for a link
    cause: Cause  # what kind of thing makes it slow
    facts: Mapping[str, float]  # what Linux counted of that: shares of the time, and numbers a second
    since_step: int  # the first and the last update of the time in which it was slow
    until_step: int  # the first and the last update of the time in which it was slow

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Straggler | None":
        """What `dataclasses.asdict` made of one, read from a file; None where that is not what it holds."""
        values: dict[str, Any] = {field.name: line.get(field.name) for field in fields(cls)}
        facts = values["facts"]
        if not isinstance(values["host"], str) or values["cause"] not in get_args(Cause) or not isinstance(facts, dict):
            return None
        if not (values["rank"] is None or _is_number(values["rank"])) or not all(map(_is_number, facts.values())):
            return None
        if not all(_is_number(values[name]) for name in _NUMBERS):
            return None
        return cls(**{**values, "facts": {name: value for name, value in facts.items() if name in _WORDS}})

    @property
    def sentence(self) -> str:
        """For people."""
        waited = f"{self.share_of_time_others_waited:.0%} of their time"
        facts = ", ".join(_counted(name, value) for name, value in self.facts.items() if value)
        counted = f" ({facts})" if facts else ""
        if self.cause == "slow link":
            whose = "the network" if self.rank is None else f"the network of {self._who}"
            return f"All ranks wait {waited} for {whose}: slow link{counted}."
        cause = "the cause is not known" if self.cause == "unknown" else f"the cause is: {self.cause}"
        who = self._who[0].upper() + self._who[1:]
        return f"{who} is slow by {self.slower_by:.0%}, and the others wait {waited} for it; {cause}{counted}."

    @property
    def _who(self) -> str:
        return f"rank {self.rank}" + (f" on {self.host}" if self.host else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _counted(name: str, value: float) -> str:
    text, form = _WORDS[name]
    return f"{text} {value:{form}}"


_NUMBERS: Final = ("share_of_time_others_waited", "slower_by", "since_step", "until_step")
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "cpu": ("CPU seconds a second:", ".2f"),
    "queued": ("share of time ready without a processor:", ".0%"),
    "stolen": ("share of processor time stolen:", ".0%"),
    "throttled": ("share of time throttled:", ".0%"),
    "major_faults": ("pages a second waited for:", ".0f"),
    "swapped": ("pages a second from swap:", ".0f"),
    "memory_stall": ("share of time stalled for memory:", ".0%"),
    "io_stall": ("share of time the host stalled for disks:", ".0%"),
    "disk_wait": ("share of time waiting for disks:", ".0%"),
    "read_bytes": ("bytes a second from disks:", ".3g"),
    "send_busy": ("share of time its connection was busy:", ".0%"),
    "sent_bytes": ("bytes a second sent:", ".3g"),
    "round_trip": ("round trip in seconds:", ".2g"),
}
