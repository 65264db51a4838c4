"""Amounts as text, and text as amounts."""

import math
import re

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"(\d{1,15})\s*([KMG]i?B?|B)?", re.IGNORECASE)


def in_bytes(count: float) -> str:
    """For people: 1536 is "1.5 KiB", 65536 is "64 KiB"."""
    power = min(int(math.log(count, 1024)), len(_BINARY) - 1) if count >= 1 else 0
    return f"{_digits(count / 1024**power)} {_BINARY[power]}"


def in_seconds(seconds: float) -> str:
    """For people: 0.0012 is "1.2 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{_digits(seconds * scale)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def in_rate(bytes_per_second: float) -> str:
    """For people, in the decimal units of networks: 12e6 is "12 MB/s"."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_second >= scale:
            return f"{_digits(bytes_per_second / scale)} {unit}"
    return f"{_digits(bytes_per_second / 1e3)} kB/s"


def parse_size(text: str) -> int:
    """Bytes of "4", "4B", "64KiB", "64K" or "1MB"; K, M and G are binary, as in all benchmarks of collectives.

    Raises:
        ValueError: no such size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4B, 64KiB or 16MiB")
    unit = (match[2] or "B").upper()
    factor: int = 1024 ** "BKMG".index(unit[0])
    return int(match[1]) * factor


def _digits(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
