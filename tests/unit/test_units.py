"""Amounts are written for people, and read as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.units import in_bytes, in_duration, in_rate, in_seconds, in_time, parse_size, seconds_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("4B", 4),
        ("1KiB", 1024),
        ("1k", 1024),
        ("64 MiB", 2**26),
        ("2G", 2**31),
        ("1MB", 2**20),
        ("3T", 3 * 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1.5M", "-4", "4PB", "1KiB2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 4), st.integers(1, 1023))
def test_sizes_are_written_as_they_are_read(power: int, count: int) -> None:
    assert parse_size(in_bytes(count * 1024**power)) == count * 1024**power


def test_amounts_for_people() -> None:
    assert [in_seconds(0.0000031), in_seconds(0.0012), in_seconds(12.3)] == ["3.1 µs", "1.2 ms", "12 s"]
    assert [in_rate(25e6), in_rate(1.2e9), in_rate(3e5)] == ["25 MB/s", "1.2 GB/s", "300 kB/s"]
    assert [in_time(seconds) for seconds in (40, 119, 120, 7199, 7200, 4 * 86_400)] == [
        *("40 s", "119 s", "2 min", "120 min", "2 h", "4 d"),
    ]
    assert [in_duration(seconds) for seconds in (0.00025, 3.21, 725, 12_000, 187_200)] == [
        *("0.25 ms", "3.2 s", "12 min 5 s", "3 h 20 min", "2 d 4 h"),
    ]


@pytest.mark.parametrize(
    "same", ["5400", "5.4e3", "90:00", "1:30:00", "0-01:30:00", "90min", "1.5h", "1.5 h", "0.0625d", "5400s"]
)
def test_one_time_in_many_ways(same: str) -> None:
    assert seconds_of(same, "--max-time") == 5400


@given(days=st.integers(0, 99), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(1, 59))
def test_slurms_way(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    assert seconds_of(text, "--max-time") == 86400 * days + 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize("wrong", ["", "soon", "1:2:3:4", "3m", "0h", "-1", "0", "0:00:00", "inf", "nan", "1-30"])
def test_what_is_no_time(wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig(max_time=wrong)
    assert caught.value.fact == f"--max-time is {wrong}."
    assert "3:30:00" in caught.value.hint
