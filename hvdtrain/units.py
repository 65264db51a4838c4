"""Amounts as people read and write them: bytes, rates, measured times, ages, durations."""

import math
import re
from typing import Final

from hvdtrain.errors import UsageError

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]i?B?|B)?", re.IGNORECASE)

_TIMES: Final = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_TIME = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?) ?(?P<unit>s|min|h|d)")
_CLOCK = re.compile(r"(?:(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})")


def in_bytes(count: float) -> str:
    """A size: 1536 is "1.5 KiB", 65536 is "64 KiB"."""
    power = min(int(math.log(count, 1024)), len(_BINARY) - 1) if count >= 1 else 0
    return f"{_digits(count / 1024**power)} {_BINARY[power]}"


def in_decimal_bytes(count: float) -> str:
    """A size in the decimal units of reports: "512 B", "1.2 MB", "3.4 GB"."""
    scale, prefix = next((pair for pair in _DECIMAL if count >= pair[0]), (1.0, ""))
    return f"{count / scale:.1f} {prefix}B" if prefix else f"{count:.0f} B"


def in_rate(bytes_per_second: float) -> str:
    """A rate in the decimal units of networks: 12e6 is "12 MB/s"."""
    scale, prefix = next((pair for pair in _DECIMAL[2:] if bytes_per_second >= pair[0]), _DECIMAL[-1])
    return f"{_digits(bytes_per_second / scale)} {prefix}B/s"


def in_measure(value: float | None) -> str:
    """A measured value: 0.0512, 12.3456, 2.341e-06, 1e+30; "nan" also for None, as files have it."""
    if value is None:
        return "nan"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def in_count(value: float) -> str:
    """A number beside an axis: 0.05, 12, 3.5k, 2M."""
    scale, prefix = next((pair for pair in _DECIMAL if abs(value) >= pair[0]), (1.0, ""))
    return f"{value / scale:.4g}{prefix}" if prefix else f"{value:.4g}".replace("e-0", "e-")


def in_seconds(seconds: float) -> str:
    """A measured time: 0.0012 is "1.2 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{_digits(seconds * scale)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def in_time(seconds: float) -> str:
    """An age, in whole units of which there are two or more: "40 s", "119 s", "2 min", "47 h", "4 d"."""
    unit, size = next(((unit, size) for unit, size in _TIMES.items() if seconds >= 2 * size), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def in_duration(seconds: float) -> str:
    """How long something took: "0.25 ms", "3.2 s", "12 min 5 s", "3 h 20 min", "2 d 4 h"."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    units = list(_TIMES.items())
    for (unit, size), (small_unit, small_size) in zip(units, units[1:], strict=False):
        if seconds >= size:
            whole, rest = divmod(round(seconds / small_size), size // small_size)
            return f"{whole} {unit} {rest} {small_unit}" if rest else f"{whole} {unit}"
    return f"{seconds:.0f} s"


def parse_size(text: str) -> int:
    """Bytes of "4", "4B", "64KiB", "64K" or "1MB"; K, M, G and T are binary, as in all benchmarks of collectives.

    Raises ValueError: no such size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4B, 64KiB or 16MiB")
    unit = (match[2] or "B").upper()
    factor: int = 1024 ** "BKMGT".index(unit[0])
    return int(match[1]) * factor


def bytes_of(size: str, option: str) -> int:
    """Bytes of "512MiB", "2GiB" or "1000000". Raises UsageError: it is none of these; `option` says where it stood."""
    try:
        return parse_size(size)
    except ValueError as error:
        raise UsageError(
            f"{option} is {size}.",
            "It must be a size in bytes, KiB, MiB, GiB or TiB.",
            f"half a gibibyte is {option} 512MiB.",
        ) from error


def seconds_of(duration: str, option: str) -> float:
    """Seconds of "5400", "90min", "1.5h", "90:00", "1:30:00" or "0-01:30:00", which all are the same.

    Raises UsageError: it is none of these, or not more than 0; `option` says where it was given.
    """
    seconds = _parse_duration(duration)
    if seconds is None or not 0 < seconds < math.inf:
        raise UsageError(
            f"{option} is {duration}.",
            "It must be a time: seconds, minutes:seconds, hours:minutes:seconds, days-hours:minutes:seconds, or a "
            "number with s, min, h or d.",
            f"three and a half hours are {option} 3:30:00 or {option} 3.5h.",
        )
    return seconds


def _parse_duration(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    if match := _TIME.fullmatch(text.strip()):
        return float(match["number"]) * _TIMES[match["unit"]]
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def _digits(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
