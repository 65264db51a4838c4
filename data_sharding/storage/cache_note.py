"""What is noted beside a copy in the cache: what it is a copy of, and how to tell whether it still is one."""

import json
import os
from pathlib import Path
from typing import Any

import google_crc32c

from data_sharding.atomic import atomic_file
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.redaction import redacted


def path_of(place: Path) -> Path:
    """Where the note of the copy `place` is."""
    return place.with_name(f"{place.name}.json")


def write(place: Path, entry: FileEntry, crc: int) -> None:
    """Note that `place` as it is now, with that CRC-32C, is the copy of `entry`."""
    _write(place, os.stat(place), {"url": redacted(entry.path), "crc32c": crc})


def renew(place: Path, status: os.stat_result) -> None:
    """Note that the copy with this status is sound, though something has touched it. Raises OSError, ValueError."""
    _write(place, status, _read(place))


def _write(place: Path, status: os.stat_result, about: dict[str, Any]) -> None:
    size, mtime_ns, ctime_ns = times(status)
    about = {**about, "size": size, "mtime_ns": mtime_ns, "ctime_ns": ctime_ns}
    with atomic_file(path_of(place)) as file:
        file.write(json.dumps(about).encode())


def times(status: os.stat_result) -> tuple[int, int, int]:
    """Size and times of a file, one of which differs once it was written to: nobody can put back that of its status."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def noted_times(place: Path) -> tuple[Any, ...]:
    """What `times` was when the copy was made, or was found to be sound. Raises OSError, ValueError or KeyError: its
    note cannot be read."""
    about = _read(place)
    return about["size"], about["mtime_ns"], about.get("ctime_ns")


def is_sound(place: Path) -> bool:
    """Whether the content of a copy still is what came; it is read in full."""
    try:
        return holds(place)
    except (OSError, ValueError, KeyError):
        return False


def holds(place: Path) -> bool:
    """As `is_sound`. Raises OSError, ValueError or KeyError: the copy or its note cannot be read."""
    expected, found = _read(place)["crc32c"], 0
    with open(place, "rb") as file:
        while chunk := file.read(8 << 20):
            found = google_crc32c.extend(found, chunk)
    return bool(found == expected)


def last_use(place: Path) -> float:
    """When a process began to use a copy last; infinity for one in the making: a part, or one that is not noted yet."""
    try:
        return float("inf") if place.suffix else os.stat(path_of(place)).st_mtime
    except FileNotFoundError:
        return float("inf")


def unlink_both(place: Path) -> None:
    """Remove a copy, or a part, and its note."""
    place.unlink(missing_ok=True)
    path_of(place).unlink(missing_ok=True)


def _read(place: Path) -> dict[str, Any]:
    about = json.loads(path_of(place).read_bytes())
    if not isinstance(about, dict):
        raise ValueError("what was noted of it is not an object")
    return about
