"""The measurements: each function asks running arms and returns what goes into the result file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.blocks import both_runs
from benchmarks.loader.arms.interface import Order
from benchmarks.loader.datasets import Content, DataSet
from benchmarks.loader.driver import ArmError, ArmProcess

ORDERS: Final[tuple[Order, ...]] = ("sequential", "shuffled")
FRACTIONS: Final = (0.01, 0.5, 0.99)
# Records that a memory measurement reads: enough to fill every buffer.
_MEMORY_LIMIT: Final = 100_000

Blocks = list[dict[str, list[dict[str, float]]]]
Say = Callable[[str], None]


def prepare(arm: ArmProcess, data: DataSet, say: Say) -> None:
    """Write the data set in the arm's format, unless that was done before."""
    folder = arm.folder(data)
    content, done = folder.parent / "content.json", folder / ".complete"
    if not content.exists():
        say(f"making {data.records} records of {data.name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        Content.of(data.payloads()).save(content)
    if not done.exists():
        say(f"converting {data.name} to {folder.name}")
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
        folder.mkdir()
        arm.ask("prepare", data)
        done.touch()


def verify(arm: ArmProcess, data: DataSet) -> dict[str, bool]:
    """Check that the arm delivers every payload, in each order; says whether shuffled differs from sequential.

    Raises:
        ArmError: it delivers something else, or the files' order where it should shuffle, or the reverse.
    """
    want = Content.load(arm.folder(data).parent / "content.json")
    in_order: dict[str, bool] = {}
    for order in ORDERS:
        got = Content(**arm.ask("verify", data, order=order))
        if (got.records, got.total_bytes, got.crc_sum) != (want.records, want.total_bytes, want.crc_sum):
            raise ArmError(f"{arm.name} read {got} of {data.name}, not {want}")
        in_order[order] = got.crc_chain == want.crc_chain
    if in_order != {"sequential": True, "shuffled": False}:
        raise ArmError(f"{arm.name} on {data.name}: in the files' order: {in_order}")
    return in_order


def speed(arms: Sequence[ArmProcess], data: DataSet, order: Order, blocks: int) -> Blocks:
    """Blocks of ABBA: in each block every arm reads the whole data set twice, one arm at a time."""
    by_name = {arm.name: arm for arm in arms}

    def epoch(name: str) -> dict[str, float]:
        return by_name[name].ask("measure", data, order=order)

    for name in by_name:
        epoch(name)  # to warm up
    return [both_runs(list(by_name), turn, epoch) for turn in range(blocks)]


def rate(block: Mapping[str, Sequence[Mapping[str, float]]], arm: str) -> float:
    """Records/s of one arm in one block."""
    return sum(part["records"] for part in block[arm]) / sum(part["seconds"] for part in block[arm])


def resume(arm: ArmProcess, data: DataSet, repeats: int) -> dict[str, Any]:
    """Resume a shuffled epoch at each fraction; arms that must read again from the start do so only once."""
    steps = -(-data.records // data.batch)
    repeats = 1 if arm.description["resumes"] == "reread" else repeats
    return {
        str(part): arm.ask("resume", data, order="shuffled", step=int(steps * part), repeats=repeats)
        for part in FRACTIONS
    }


def resume_elsewhere(arm: ArmProcess, data: DataSet, size: int, repeats: int) -> dict[str, Any]:
    """The same for one rank of `size`, of an epoch that was begun by a single process."""
    steps = -(-data.records // data.batch)
    return {
        str(part): arm.ask(
            "resume_elsewhere", data, order="shuffled", step=int(steps * part), size=size, repeats=repeats
        )
        for part in FRACTIONS
    }


def memory(arm: ArmProcess, data: DataSet) -> dict[str, float]:
    """Peak memory of reading a shuffled epoch; the process should be a new one."""
    return arm.ask("memory", data, order="shuffled", limit=_MEMORY_LIMIT)


def notices_damage(arm: ArmProcess, data: DataSet) -> dict[str, Any]:
    """Whether the arm refuses a payload with one bit flipped on disk, or delivers it."""
    payloads = list(data.payloads())
    want = Content.of(payloads)
    with _flipped(arm.folder(data), payloads[len(payloads) // 2]):
        try:
            got = Content(**arm.ask("verify", data, order="sequential"))
        except ArmError as error:
            return {"noticed": True, "how": str(error)}
    if got.crc_sum == want.crc_sum:
        raise ArmError(f"{arm.name} did not read the flipped bit at all")
    return {"noticed": False, "how": "handed on the damaged payload"}


@contextmanager
def _flipped(folder: Path, payload: bytes) -> Iterator[None]:
    """Flip one bit of a payload in the files of whatever format, keeping their times as bit rot does; then undo it."""
    middle = payload[len(payload) // 2 :]
    path, offset = next((path, at) for path in sorted(folder.iterdir()) if (at := path.read_bytes().find(middle)) >= 0)
    status = path.stat()

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    flip()
    try:
        yield
    finally:
        flip()
