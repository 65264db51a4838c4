"""Measure all loaders and write the result, a table and a plot: `python -m benchmarks.loader --help`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import saved
from benchmarks.loader import measure
from benchmarks.loader.arms import OURS, PEERS
from benchmarks.loader.datasets import DataSet, data_sets
from benchmarks.loader.driver import ArmProcess

_SPEED_SETS: Final = ("3kb", "jpeg", "skewed")
_OTHER_SIZE: Final = 3
# Arms that differ from another only in what makes no difference to resuming or to memory.
_NO_RESUME: Final = ("data_sharding_again", "data_sharding_no_crc", "data_sharding_reader_no_crc", "grain_crc")
_NO_MEMORY: Final = _NO_RESUME


class _Run:
    """One invocation: its options, its running arms, and the result as it grows."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._data = data_sets(options.scale)
        self._begin = time.monotonic()
        self.result: dict[str, Any] = {
            **saved.begun(versions={}),
            "options": {"blocks": options.blocks, "scale": options.scale, "core": options.core},
            "data": {name: data.as_json() for name, data in self._data.items()},
            "arms": {},
        }

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:5.0f} s] {text}", flush=True)

    def start(self, name: str) -> ArmProcess:
        python = sys.executable if name in OURS else str(self._options.peers_venv / "bin" / "python")
        log = self._options.data / "arms.log"
        return ArmProcess(name, python, self._options.core, self._options.data, log)

    def measure_running(self) -> None:
        """All that is measured in processes that stay warm."""
        with contextlib.ExitStack() as stack:
            arms = {name: stack.enter_context(self.start(name)) for name in self._options.arms}
            for name, arm in arms.items():
                self.result["arms"][name] = dict(arm.description)
            for arm, data in itertools.product(arms.values(), self._data.values()):
                measure.prepare(arm, data, self.say)  # later runs find it done
            if self._options.prepare_only:
                return
            for name in (*_SPEED_SETS, "damaged"):
                self._verify(arms, self._data[name])
            self._damage(arms)
            self.result["speed"] = {
                name: {order: self._speed(arms, self._data[name], order) for order in measure.ORDERS}
                for name in _SPEED_SETS
            }
            self._resume(arms)

    def measure_memory(self) -> None:
        """What needs a new process for each measurement."""
        self.result["memory"] = {}
        for name in self._options.arms:
            if name not in _NO_MEMORY:
                self.say(f"memory of {name}")
                self.result["memory"][name] = {size: self._memory(name, self._data[size]) for size in ("few", "many")}

    def _memory(self, name: str, data: DataSet) -> dict[str, float]:
        with self.start(name) as arm:
            return measure.memory(arm, data)

    def _verify(self, arms: dict[str, ArmProcess], data: DataSet) -> None:
        for arm in arms.values():
            measure.verify(arm, data)
        self.say(f"{data.name}: every arm delivers the same {data.records} payloads")

    def _damage(self, arms: dict[str, ArmProcess]) -> None:
        self.result["damage"] = {name: measure.notices_damage(arm, self._data["damaged"]) for name, arm in arms.items()}

    def _speed(self, arms: dict[str, ArmProcess], data: DataSet, order: Any) -> dict[str, Any]:
        same = [arms[name] for name in ("data_sharding", "data_sharding_again")]
        noise = measure.speed(same, data, order, self._options.blocks)
        compared = [arm for name, arm in arms.items() if name != "data_sharding_again"]
        self.say(f"{data.name}, {order}: {self._options.blocks} blocks of {len(compared)} arms")
        return {"same": noise, "blocks": measure.speed(compared, data, order, self._options.blocks)}

    def _resume(self, arms: dict[str, ArmProcess]) -> None:
        self.say("resuming at 1 %, 50 % and 99 %")
        data, many, repeats = self._data["3kb"], self._data["many"], self._options.repeats
        self.result["resume"] = {
            name: measure.resume(arm, data, repeats) for name, arm in arms.items() if name not in _NO_RESUME
        }
        ours = arms["data_sharding"]
        self.result["resume"]["data_sharding, 1 to 3 ranks"] = measure.resume_elsewhere(
            ours, data, _OTHER_SIZE, repeats
        )
        self.result["resume"]["data_sharding, 1,000,000 records"] = measure.resume(ours, many, repeats)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__)
    parser.add_argument("--peers-venv", type=Path, help="made by benchmarks.loader.setup_peers; without it, no peers")
    parser.add_argument("--data", type=Path, default=Path("/tmp/loader-benchmark"), help="folder for the data (3 GB)")
    parser.add_argument("--out", type=Path, default=saved.RESULTS, help="folder for the result")
    parser.add_argument("--core", type=int, default=1, help="the CPU that all arms run on")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks of each comparison")
    parser.add_argument("--repeats", type=int, default=7, help="times that each resume is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of records")
    parser.add_argument("--prepare-only", action="store_true", help="make and convert the data, and stop")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="peers to measure")
    options = parser.parse_args()
    options.arms = [*OURS, *(options.peers if options.peers_venv else [])]
    return options


def main() -> None:
    """Measure, then write loader-<date>.json, .md and .svg."""
    options = _parse()
    options.data.mkdir(parents=True, exist_ok=True)
    run = _Run(options)
    run.measure_running()
    if options.prepare_only:
        return
    run.measure_memory()
    saved.save(run.result, "loader", options.out)


if __name__ == "__main__":
    main()
