"""A checkpoint of which several ranks write a part each, before rank 0 makes one checkpoint of the parts."""

import os
from collections.abc import Callable
from pathlib import Path

from hvdtrain.checkpoints.format import write_files
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.errors import UsageError
from hvdtrain.files import unwritable
from hvdtrain.named_arrays import State


def writing_ranks(size: int, writers: int) -> list[int]:
    """The ranks that write, rank 0 first: spread evenly, and so over hosts, whose ranks follow each other."""
    count = min(size, writers)
    return [index * size // count for index in range(count)]


def part_of(state: State, index: int, count: int) -> State:
    """The arrays of part `index` of `count`; the parts have about the same number of bytes each. The same division on
    all ranks: the largest array that is left goes to the part that has the fewest bytes."""
    if count == 1:
        return state
    sizes = [0] * count
    names: set[str] = set()
    # Texts have no size here: each writer has its own, and they need not be equally long.
    lengths = {name: 0 if array.dtype.kind == "S" else array.nbytes for name, array in state.items()}
    for name in sorted(state, key=lambda name: (-lengths[name], name)):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += lengths[name]
        if smallest == index:
            names.add(name)
    return {name: array for name, array in state.items() if name in names}


def write_part(staging: Path, state: State, index: int, count: int) -> dict[str, str]:
    """Write part `index` of `count` of a state into the folder `staging`; returns file → SHA-256. Raises OSError: it is
    not written, or not completely."""
    ending = "" if count == 1 else f"-{index + 1:05}-of-{count:05}"
    return write_files(staging, part_of(state, index, count), ending, whole=index == 0)


def in_parts(count: int) -> Callable[[Path, State], dict[str, str]]:
    """For `write_checkpoint`: divides the arrays of each kind among `count` files, or as many as there are arrays."""

    def write(staging: Path, state: State) -> dict[str, str]:
        parts = max(1, min(count, len(state)))
        return {
            name: digest for index in range(parts) for name, digest in write_part(staging, state, index, parts).items()
        }

    return write


def require_shared(folder: Path, comm: Communicator) -> None:
    """Raise `UsageError` on all ranks unless each of them finds in `folder` what rank 0 has just put there. Collective.
    A name that no rank has looked for before is also found at once on NFS, which remembers what it has not found."""
    name = broadcast_json(comm, f".{os.urandom(8).hex()}.seen.tmp", "hvdtrain.folder.seen")
    agree(comm, lambda: _leave(folder / name) if comm.topology.is_root else None, "hvdtrain.folder.left")
    try:
        agree(comm, lambda: _find(folder / name), "hvdtrain.folder.shared")
    finally:
        if comm.topology.is_root:
            (folder / name).unlink(missing_ok=True)


def _leave(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise unwritable(file.parent, error) from error


def _find(file: Path) -> None:
    if not file.exists():
        raise UsageError(
            f"{file.parent} is not the folder that rank 0 has under this name.",
            "With --checkpoint-writers above 1 each writer puts its part of a checkpoint there.",
            "choose an --output-dir on a disk that all hosts share, or leave out --checkpoint-writers.",
        )
