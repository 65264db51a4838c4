"""Arrays over files that are mapped into memory, as places in these files, so that no process copies what they hold."""

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import ChangedDataError

_MAPS: Final = Path("/proc/self/maps")
_DELETED: Final = " (deleted)"


class MappedFile(NamedTuple):
    """A file as another process finds it again: device and inode say whether its name still stands for it."""

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> "MappedFile":
        found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino)


class PlaceInFile(NamedTuple):
    """`size` bytes of a file from `offset` on, and the array in them; `start` is the place of its first element."""

    file: MappedFile
    offset: int
    size: int
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_writable: bool


def place_of_array(value: Any) -> PlaceInFile | None:
    """Where in a mapped file an array is, of numpy's memory map and its views; None: in memory of this process.

    Pages of a private map may have been written to, so that the file does not have them: None for these, too.
    """
    if not isinstance(value, np.ndarray) or value.dtype.hasobject or not value.size or _is_in_memory(value):
        return None
    low, high = np.lib.array_utils.byte_bounds(value)
    if (found := _file_at(low, high)) is None:
        return None
    file, offset = found
    form = value.dtype, value.shape, value.strides, value.flags.writeable
    return PlaceInFile(file, offset, high - low, value.__array_interface__["data"][0] - low, *form)


def array_at(*place: Any) -> NDArray[Any]:
    """The array of `place_of_array`, over a map of the file; what is written to it stays in this process.

    Raises ChangedDataError: the file's name stands for another file now, or for none.
    """
    file, offset, size, start, dtype, shape, strides, is_writable = PlaceInFile(*place)
    try:
        is_same = MappedFile.of(file.path) == file
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise ChangedDataError(
            f"{file.path}, which an array of the data maps into memory, was replaced or removed.",
            "Each process that makes items maps the file again.",
            "leave the file in its place during training, and start the run again.",
        )
    content = np.memmap(file.path, np.uint8, "c" if is_writable else "r", offset, (size,))
    return np.ndarray(shape, dtype, content, start, strides)


def _is_in_memory(array: NDArray[Any]) -> bool:
    """Whether numpy has allocated what the array, or the array that it is a view of, holds."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return bool(root.flags.owndata)


def _file_at(low: int, high: int) -> tuple[MappedFile, int] | None:
    """The file whose shared map has the addresses from `low` to `high`, and the offset of `low` in it."""
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        addresses, access, offset, _, inode, *path = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in addresses.split("-"))
        if first <= low and high <= end:
            name = path[0] if path else ""
            if not access.endswith("s") or name.endswith(_DELETED) or not os.path.isfile(name):
                return None
            file = MappedFile.of(name)
            return (file, low - first + int(offset, 16)) if file.inode == int(inode) else None
    return None
