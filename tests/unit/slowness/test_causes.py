"""Each kind of cause is told by its own counters, and none is named that explains little."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.slowness.causes import _FACTS, COLUMNS, Cause, Excess, Pressure, cause_of, facts_of

COMPUTING = Excess(seconds=10.0, own=6.0, data=0.0)
READING = Excess(seconds=10.0, own=6.0, data=5.0)
QUIET = Pressure(wall=10.0, cpu=9.0, queued=0.1)


@pytest.mark.parametrize(
    ("cause", "excess", "own"),
    [
        ("cpu throttled", COMPUTING, Pressure(wall=10.0, cpu=3.0, throttled=6.5, queued=6.6)),
        ("cpu throttled", READING, Pressure(wall=10.0, cpu=3.0, throttled=6.5, queued=6.6)),
        ("cpu stolen", COMPUTING, Pressure(wall=10.0, cpu=4.0, stolen=5.0)),
        ("cpu contention", COMPUTING, Pressure(wall=10.0, cpu=4.0, queued=5.0)),
        ("cpu contention", READING, Pressure(wall=10.0, cpu=4.0, queued=5.0)),
        (
            "swapping",
            COMPUTING,
            Pressure(wall=10.0, cpu=2.0, major_faults=900, swapped=5000, memory_stall=7, io_stall=7),
        ),
        ("swapping", READING, Pressure(wall=10.0, cpu=2.0, major_faults=900, swapped=5000, memory_stall=7, io_stall=7)),
        ("slow disk", READING, Pressure(wall=10.0, cpu=2.0, io_stall=5.0, read_bytes=3e6)),
        ("slow disk", COMPUTING, Pressure(wall=10.0, cpu=2.0, disk_wait=5.0)),
        ("slow input", READING, Pressure(wall=10.0, cpu=2.0)),
        ("unknown", COMPUTING, Pressure(wall=10.0, cpu=2.5)),
        ("unknown", COMPUTING, Pressure(wall=10.0, cpu=9.0, io_stall=9.0)),  # of the host, for whatever uses its disk
        ("unknown", COMPUTING, Pressure(wall=10.0, memory_stall=9.0, swapped=5000)),  # of another process
        ("unknown", COMPUTING, Pressure()),
    ],
)
def test_a_kind_of_cause(cause: Cause, excess: Excess, own: Pressure) -> None:
    assert cause_of(excess, own, QUIET) == cause
    assert all(value >= 0 for value in facts_of(cause, own).values())


@pytest.mark.parametrize("name", ["throttled", "stolen", "queued", "disk_wait"])
def test_what_the_others_have_too_is_no_cause(name: str) -> None:
    own = Pressure(wall=10.0, **{name: 6.0})
    assert cause_of(COMPUTING, own, Pressure(wall=5.0, **{name: 3.0})) == "unknown"
    assert cause_of(COMPUTING, own, QUIET) != "unknown"


def test_a_rank_that_does_more_waits_more_for_a_processor_and_that_is_no_cause() -> None:
    own = Pressure(wall=10.0, cpu=4.0, queued=5.0)
    assert cause_of(COMPUTING, own, Pressure(wall=10.0, cpu=2.0, queued=2.4)) == "unknown"
    assert cause_of(COMPUTING, own, Pressure(wall=10.0, cpu=2.0, queued=0.4)) == "cpu contention"


@given(st.builds(Pressure, st.just(10.0), *[st.floats(0, 1.9)] * (len(COLUMNS) - 1)))
def test_a_kind_that_explains_little_is_never_named(own: Pressure) -> None:
    assert cause_of(COMPUTING, own, Pressure(wall=10.0)) == "unknown"


def test_every_kind_has_its_facts() -> None:
    assert set(_FACTS) == set(get_args(Cause))
    assert {name for names in _FACTS.values() for name in names} <= set(COLUMNS)
    link = Pressure(wall=4.0, send_busy=3.0, sent_bytes=8e6, round_trip=0.01)
    assert facts_of("slow link", link) == {"send_busy": 0.75, "sent_bytes": 2e6, "round_trip": 0.01}
