"""`--max-time` as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.units import seconds_of


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
