"""Numbers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.report import wording
from hvdtrain.units import in_count, in_decimal_bytes


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.97777, "0.9778"),
        (12.345678, "12.35"),
        (1234.6, "1,235"),
        (0.0001, "0.0001"),
        (1.234567e-5, "1.235e-05"),
        (-0.5, "-0.5"),
        (0.0, "0"),
        (200.0, "200"),
        (None, "–"),
    ],
)
def test_amounts(value: float | None, told: str) -> None:
    assert wording.amount(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0 s"),
        (0.00025, "0.25 ms"),
        (3.21, "3.2 s"),
        (99.97, "100 s"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (7199.9, "2 h"),
        (12_000, "3 h 20 min"),
        (200_000, "2 d 8 h"),
        (None, "–"),
    ],
)
def test_times(value: float | None, told: str) -> None:
    assert wording.seconds(value) == told


@pytest.mark.parametrize(("value", "told"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (5e9, "5.0 GB")])
def test_sizes(value: float, told: str) -> None:
    assert in_decimal_bytes(value) == told


def test_words() -> None:
    assert (wording.plural(1, "worker"), wording.plural(1200, "worker")) == ("1 worker", "1,200 workers")
    assert (wording.listed(["a"]), wording.listed(["a", "b", "c"]), wording.listed([])) == ("a", "a, b and c", "")
    assert (wording.share(0.974), wording.share(0.0123), wording.share(0)) == ("97 %", "1.2 %", "0 %")
    assert (wording.title_of("lr"), wording.title_of("top_5 accuracy")) == ("Learning rate", "Top 5 accuracy")
    assert (wording.plain(True), wording.plain(None), wording.plain(1e-5), wording.plain([1, "a"])) == (
        "true",
        "–",
        "1e-05",
        "1, a",
    )
    assert wording.moment(1e300) == wording.moment(None) == "–"


@given(st.floats(-1e100, 1e100))
def test_every_number_can_be_told(value: float) -> None:
    for told in (wording.amount(value), in_count(value), wording.seconds(abs(value)), in_decimal_bytes(abs(value))):
        assert 0 < len(told) < 140
    assert float(wording.amount(value).replace(",", "")) == pytest.approx(value, rel=1e-3, abs=1e-9)
