"""What one rank of N does, and what it writes: `python -m benchmarks.scale.worker N FOLDER` prints it as JSON, and
leaves a run folder.

The package hvdtrain is the one on the import path, which may be of an earlier version: only names that were there
before lists became summaries are used without asking. Seconds are of this process on a processor, so that other
processes do not count.
"""

from __future__ import annotations

import inspect
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.scale.engine_costs import engine_costs, failure_costs
from benchmarks.scale.files_of_hosts import costs_of_files
from benchmarks.scale.other_audits import OtherAudits
from benchmarks.scale.stand_in import RANKS_PER_HOST, StandIn, topology_of
from data_sharding import Catalog, LoadedBatch, ShardPlan
from hvdtrain.adapters.adapter_protocol import Sums
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.audit.ledger import CoverageLedger
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.engine import events, meter
from hvdtrain.engine.limits import RunResult
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.files import open_lines, write_json
from hvdtrain.run import training
from hvdtrain.run.result import Totals, environment, result
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.slowness.stragglers import Stragglers
from hvdtrain.topology import Topology

BATCH: Final = 32
RECORDS: Final = 1_281_167  # as many as ImageNet has
LINES: Final = 20
_AGREEMENTS: Final = 40  # of a start, about
_READINGS: Final = 20
_STEPS: Final = 100  # of which a result has the times
_FIRST: Final = 8  # reading from which on slow ranks are looked for


class Measures:
    """The part of an adapter that a meter needs."""

    stage: int | None = None
    counts = True
    allreduce: Final = 0.2
    parts: Final = {"forward": 0.2, "backward": 0.3, "optimizer": 0.1, "host_to_device": 0.01, "allreduce_hidden": 0.1}

    def read_sums(self) -> Sums:
        return Sums({"loss": 16.0, "accuracy": 20.0}, self.allreduce, parts=self.parts, device_memory=2**33)

    def take_part_times(self) -> dict[str, QuantileSketch]:
        """Of steps of which each is a little longer than the one before."""
        sketches = defaultdict[str, QuantileSketch](QuantileSketch)
        for part, seconds in {**self.parts, "allreduce": self.allreduce}.items():
            sketches[part].add(np.linspace(1.0, 1.5, _STEPS) * seconds)
        return sketches


def spread(array: np.ndarray[Any, Any], size: int, name: str) -> np.ndarray[Any, Any]:
    """Rows of a reading in which each rank's times differ a little, and the hosts' names; the same of all elsewhere."""
    if name == "hvdtrain.start.hosts.first":
        return np.tile(array, size // RANKS_PER_HOST)
    if name != "hvdtrain.meter.training":
        return np.tile(array, (size, *[1] * (array.ndim - 1)))
    rows = np.tile(array, (size, 1))
    elapsed = meter._ROW.index("elapsed")
    rows[:, elapsed] *= np.linspace(1.0, 1.1, size)
    return rows.reshape(-1)


def main() -> None:
    """Measure, write the folder, and print one line."""
    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    comm = StandIn(topology_of(size), spread)
    hosts = [f"node-{rank // RANKS_PER_HOST:05}" for rank in range(size)]
    before = _memory()
    found: dict[str, Any] = {"start": _start(comm, hosts, folder)}
    found["start"]["memory"] = _memory() - before
    found["env"] = {"bytes": (folder / "env.json").stat().st_size}
    found |= _training(comm, hosts, folder)
    found["save"] = _save(comm.topology, folder)
    found |= engine_costs(comm, hosts, folder, _summarizes(size)) | failure_costs(comm, hosts)
    found |= costs_of_files(hosts, folder, LINES, _summarizes(size))
    print(json.dumps(found))


def _memory() -> int:
    """Bytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _timed(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _start(comm: StandIn, hosts: list[str], folder: Path) -> dict[str, Any]:
    """A start's own work besides imports and reading data: hosts, agreements, the plan, and the files about the run."""
    catalog = Catalog.of(np.arange(RECORDS))
    gather_hosts = getattr(training, "gather_hosts", gather_json)  # which an earlier version uses

    def work() -> None:
        gather_hosts(comm, hosts[0], "hvdtrain.start.hosts")
        for number in range(_AGREEMENTS):
            agree(comm, lambda: None, f"hvdtrain.start.{number}")
        plan = ShardPlan.for_catalog(catalog, global_batch=BATCH * comm.topology.size, seed=0, epoch=0)
        for rank in (0, comm.topology.size - 1):
            plan.shard(rank, comm.topology.size, 0)
        (folder / "config.yaml").write_text(dump_config(TrainConfig(global_batch_size=BATCH * comm.topology.size)))
        short = getattr(training, "counted_hosts", list) if _summarizes(comm.topology.size) else list
        write_json(folder / "env.json", {**environment(comm.topology), "hosts": short(hosts)})

    seconds = _timed(work)
    return {"seconds": seconds, "received": comm.take_received()}


def _training(comm: StandIn, hosts: list[str], folder: Path) -> dict[str, Any]:
    """Readings, the lines that they become, and the result."""
    size, adapter = comm.topology.size, Measures()
    is_summarized = _summarizes(size)
    options = {"summary_hosts": hosts} if is_summarized else {}
    counter: Any = meter.Meter(adapter, comm, **options)  # type: ignore[arg-type]
    watcher: Any = _watcher(comm, hosts, is_summarized)
    totals, seconds = Totals(size), []
    batch = LoadedBatch(0, np.arange(BATCH), np.ones(BATCH, np.float32), {}, float(BATCH * size))
    with open_lines(folder / "metrics.jsonl") as file:
        sink = MetricsFile(file, time.time())
        sink(events.RunStarted(0, LINES, LINES, 1))
        comm.take_received()
        for step in range(1, _READINGS + 1):
            counter.count(batch)
            counter._begin -= 1.0  # a second of work
            begin = time.process_time()
            reading = counter.reduce("training")
            watcher(step, counter, reading)
            seconds.append(time.process_time() - begin)
            line = events.Logged(**vars(reading), epoch=0, step=step, lr=0.1)
            totals(line)
            if step <= LINES:
                written = _timed(partial(sink, line))
        received = comm.take_received() // _READINGS
        sink(events.RunEnded(LINES, BATCH * size * LINES, True))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = {
        "reading": {"seconds": min(seconds[_FIRST:]), "received": received},
        "line": {"seconds": written, "bytes": len(lines[LINES]) + 1},
    }
    found["result"] = _result(comm, hosts, folder, totals, is_summarized)
    return found


def _summarizes(size: int) -> bool:
    """Not where an earlier version is measured, though it may find a module that this environment's hvdtrain has."""
    if "summary_hosts" not in inspect.signature(meter.Meter).parameters:
        return False
    from hvdtrain.rank_summary import summarizes

    return summarizes("auto", size)


def _watcher(comm: StandIn, hosts: list[str], is_summarized: bool) -> Callable[[int, Any, Any], Any]:
    """What looks for slow ranks after each reading."""
    if is_summarized and hasattr(meter.Meter, "own_times"):
        from hvdtrain.engine.many_stragglers import ManyStragglers

        many = ManyStragglers(comm, hosts)
        return lambda step, counter, reading: many.add(step, counter.own_times(reading), reading.summary)
    stragglers = Stragglers(hosts)
    if hasattr(meter.Meter, "rank_times"):
        return lambda step, counter, reading: stragglers.add(step, counter.rank_times(reading))
    return lambda step, _counter, reading: stragglers.add(step, meter.rank_times(reading))


def _result(comm: StandIn, hosts: list[str], folder: Path, totals: Totals, is_summarized: bool) -> dict[str, Any]:
    adapter: Any = Measures()
    times = StepTimes(adapter, comm)
    for _ in range(_STEPS):
        times.waited(time.perf_counter(), time.perf_counter())
        times.ended(1)

    def work() -> None:
        of_steps: Any = (
            {"step_summaries": times.summarized(hosts)} if is_summarized else {"step_times": times.summaries()}
        )
        if is_summarized:
            totals.gather(comm, hosts)
        values = {"loss": 0.5, "accuracy": 0.75}
        outcome = RunResult(LINES, 1, BATCH * LINES, True, values, "ab" * 32, **of_steps)
        about = {"framework": "torch", "task": "digits", "world_size": comm.topology.size}
        about |= {"global_batch_size": BATCH * comm.topology.size, "tuned": {}}
        write_json(folder / "result.json", result(about, outcome, totals, (9.0, 2.0), 1000))

    comm.take_received()
    seconds = _timed(work)
    size = (folder / "result.json").stat().st_size
    return {"seconds": seconds, "received": comm.take_received(), "bytes": size}


def _save(topology: Topology, folder: Path) -> dict[str, Any]:
    """The proof of used records before a checkpoint: what all ranks have used since the last one."""
    others = OtherAudits(topology.size, RECORDS, BATCH)
    comm = StandIn(topology, others.gathered, others.summed)
    catalog = Catalog.of(np.arange(RECORDS))
    ledger = CoverageLedger(comm, folder / "audit", catalog, bytes, steps_per_epoch=others.steps_per_epoch)
    ledger.start(0)
    for ids in others.ids[:, 0]:
        ledger.add(LoadedBatch(0, ids, np.ones(BATCH, np.float32), {}, float(BATCH * topology.size)))
    comm.take_received()
    begin = time.process_time()
    write = ledger.end_segment(others.steps)
    received = comm.take_received()
    write()
    return {"seconds": time.process_time() - begin, "received": received, "bytes": _size(folder / "audit")}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


if __name__ == "__main__":
    main()
