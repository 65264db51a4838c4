"""Times of logs have one order across zones, and lines of earlier versions are read."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from hvdtrain.history.rank_logs import LogFormatter, head_of

MOMENT = datetime(2026, 3, 29, 0, 59, 59, 250_000, UTC).timestamp()


@contextmanager
def in_zone(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


def line(moment: float, message: str = "hello", level: int = logging.WARNING) -> bytes:
    record = logging.LogRecord("hvdtrain.run", level, "f.py", 1, message, (), None)
    record.created = moment
    return LogFormatter().format(record).encode()


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3600.0, 3 * 3600.0])  # Berlin's clock changes after a second
def test_what_is_written_is_read_in_every_zone(zone: str, seconds: float) -> None:
    with in_zone(zone):
        assert head_of(line(MOMENT + seconds)) == (MOMENT + seconds, logging.WARNING)


def test_lines_of_all_versions() -> None:
    with in_zone("UTC"):
        assert line(MOMENT) == b"2026-03-29T00:59:59.250+00:00 WARNING hvdtrain.run: hello"
        assert head_of(b"2026-03-29 00:59:59,250 INFO hvdtrain.run: hello") == (MOMENT, logging.INFO)
    with in_zone("Asia/Kolkata"):
        assert line(MOMENT) == b"2026-03-29T06:29:59.250+05:30 WARNING hvdtrain.run: hello"
    assert head_of(b"2026-03-29T00:59:59.250Z ERROR x: y") == (MOMENT, logging.ERROR)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"Traceback (most recent call last):",
        b"2026-03-29T00:59:59.250+00:00",
        b"2026-02-31 00:59:59,250 INFO x: y",
    ],
)
def test_what_is_no_head(text: bytes) -> None:
    assert head_of(text) is None
