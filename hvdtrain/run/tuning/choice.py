"""In which buckets, and by how many threads, a run trains: as its checkpoint, the cache or a measurement says.

With three or more ranks the buckets decide in which order numbers are added. So a resumed run keeps its choice, and
--deterministic chooses nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.algorithms.tuning import COST, FIRST_STEPS, MOST_SECONDS, SHORTEST_RUN, Looks, affordable, fastest
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.prepare import RunSetup, fixed_batch, seconds_of_step
from hvdtrain.run.tuning.tuning_cache import MIB, Tuned, open_cache
from hvdtrain.units import seconds_of

Times = dict[int, list[float]]  # A setting → seconds of a step in each look at it, on the slowest rank
_log = logging.getLogger("hvdtrain.tuning")
_CAPS: Final = (BUCKET_BYTES, *(mib * MIB for mib in (1, 4, 100)))  # the default, then the most promising first
_NOT_TUNED: Final = (
    "not tuned: Horovod reads its cycle time and hierarchical allreduce (which needs NCCL) when it starts; "
    "binding, and threads that were chosen, are the launcher's"
)


@dataclass(frozen=True)
class StepTimer:
    """Times steps on this rank's part of one global `batch`, always as step `number`. All of its methods are
    collective."""

    adapter: TunableAdapter
    batch: LoadedBatch
    comm: Communicator
    number: int

    def look_at(self, arms: Sequence[int], use: Callable[[int], object], remaining: int, most_seconds: float) -> Times:
        """Look at as many settings as may be afforded; empty where that is too expensive. `use` makes the adapter use
        one of `arms`; the other arguments are as for `affordable`, and the same on all ranks."""
        seconds = [self._seconds(1), self._seconds(FIRST_STEPS - 1)]
        first, step = self.comm.allreduce(np.array(seconds), "hvdtrain.tuning.step", "max").tolist()
        change = max(0.0, first - step) if self.adapter.compiles_buckets else 0.0
        looks = affordable(arms, remaining, step, change, most_seconds)
        return {} if looks is None else self._looked(looks, use)

    def _looked(self, looks: Looks, use: Callable[[int], object]) -> Times:
        seconds_of_looks = []
        for arm in looks.order:
            use(arm)
            self._seconds(1)
            seconds_of_looks.append(self._seconds(looks.steps))
        slowest = self.comm.allreduce(np.array(seconds_of_looks), "hvdtrain.tuning.looks", "max").tolist()
        times: Times = {}
        for arm, seconds in zip(looks.order, slowest, strict=True):
            times.setdefault(arm, []).append(seconds)
        return times

    def _seconds(self, steps: int) -> float:
        return seconds_of_step(self.adapter, self.batch, [self.number] * steps)


def tune(
    setup: RunSetup,
    adapter: TunableAdapter,  # after its start, before its first step; it keeps its state
    comm: Communicator,
    step: int,  # how many updates the model has seen
    written: Mapping[str, Any],  # on rank 0 what the checkpoint says that is resumed from, else empty
    most_seconds: float = MOST_SECONDS,  # that a measurement may take
    tell: Callable[[str], None] = print,  # receives rank 0's line for people
) -> dict[str, Any] | None:
    """Choose, tell the adapter and the user, and return what `Tuned.to_json` makes; None where what is usual is not
    questioned. Collective."""
    caps = distinct(adapter) if may_be_tuned(setup.config, comm) else []
    if len(caps) < 2:
        return None
    threads, is_root = _common_threads(adapter, comm), comm.topology.is_root
    cache = open_cache(setup, adapter.view_state(), threads, comm)
    known = _kept(written, comm.topology.size, threads) or cache.read() if is_root else None
    told = broadcast_json(comm, known and known.to_json(), "hvdtrain.tuning.known")
    tuned, measured = None if told is None else Tuned.from_json(told, told["from"]), ""
    if tuned is None and (remaining := setup.total_steps - step) >= SHORTEST_RUN:
        batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.tuning.batch")
        before = adapter.state()
        timer = StepTimer(adapter, batch, comm, step)
        tuned, measured = _measured(timer, caps, threads, remaining, within(setup.config, most_seconds))
        adapter.load_state(before)
    if tuned is None:
        return None
    adapter.set_bucket_cap(tuned.bucket_cap)
    if threads:
        adapter.set_threads(tuned.threads or threads)
    if is_root:
        if measured:
            cache.write(tuned, measured)
        tell(f"hvdtrain: {described(tuned, measured)}")
    _log.info("%s", described(tuned, measured))
    return tuned.to_json()


def _measured(
    timer: StepTimer, caps: Sequence[int], threads: int, remaining: int, most_seconds: float
) -> tuple[Tuned | None, str]:
    """What is fastest, and what was measured; None where that would be too expensive. It leaves the settings that it
    looked at last."""
    adapter, parts = timer.adapter, 2 if threads > 1 else 1  # each costs a part of what all may cost
    limits = remaining // parts, most_seconds / parts
    by_cap = timer.look_at(caps, adapter.set_bucket_cap, *limits)
    if not by_cap:
        return None, ""
    cap = fastest(BUCKET_BYTES, by_cap)
    adapter.set_bucket_cap(cap)
    # One core is left to communication. Only a CPU's threads can be changed, by which nothing is compiled.
    by_count = timer.look_at((threads, threads - 1), adapter.set_threads, *limits) if threads > 1 else {}
    count = fastest(threads, by_count) if by_count else threads
    measured = _listed(by_cap, MIB, "MiB") + (f"; {_listed(by_count, 1, 'threads')}" if by_count else "")
    return Tuned(cap, None if count == threads else count, "measurement"), measured


def may_be_tuned(config: TrainConfig, comm: Communicator) -> bool:
    """Whether the options leave the buckets of summed gradients to us. The same on all ranks."""
    return (
        comm.topology.is_distributed
        and config.tune == "auto"
        and config.bucket_cap_mb is None
        and config.gradient_sync == "buckets"
        and not config.same_bits
        and config.data.mode == "file"
        and config.reduce_op != "adasum"
        and config.compression != "powersgd"
    )


def within(config: TrainConfig, most_seconds: float) -> float:
    """Seconds that a measurement may take in a run that --max-time may end before its steps do."""
    return most_seconds if config.max_time is None else min(most_seconds, COST * seconds_of(config.max_time, ""))


def distinct(adapter: TunableAdapter) -> list[int]:
    """Sizes that cut this model's gradients differently, the default first; none where the adapter has no buckets."""
    by_cut = {adapter.buckets(cap): cap for cap in reversed(_CAPS)}
    return [] if () in by_cut else sorted(by_cut.values(), key=_CAPS.index)


def described(tuned: Tuned, measured: str) -> str:
    """One line for people."""
    threads = "" if tuned.threads is None else f", and {tuned.threads} threads compute for each worker"
    chosen = f"gradients are exchanged in buckets of up to {tuned.bucket_cap / MIB:g} MiB{threads}"
    if not measured:
        return f"{chosen}, as the {tuned.source} says (--bucket-cap-mb or --tune never change that)"
    return f"{chosen}, since a step took with {measured}; {_NOT_TUNED}"


def _listed(times: Times, unit: int, name: str) -> str:
    looks = {arm / unit: " and ".join(f"{1e3 * one:.3g}" for one in both) for arm, both in times.items()}
    return ", ".join(f"{arm:g} {name} {both} ms" for arm, both in looks.items())


def _common_threads(adapter: TunableAdapter, comm: Communicator) -> int:
    """Of each worker, if all have as many; else 0."""
    limits = np.array([adapter.threads, -adapter.threads])
    most, least = comm.allreduce(limits, "hvdtrain.tuning.threads", "max").tolist()
    return int(most) if most == -least else 0


def _kept(written: Mapping[str, Any], size: int, threads: int) -> Tuned | None:
    """What the checkpoint says, where it was written by as many workers; its threads only for as many cores."""
    if written.get("tuned") is None or written.get("world_size") != size:
        return None
    tuned = Tuned.from_json(written["tuned"], "checkpoint")
    return tuned if tuned.threads == threads - 1 else replace(tuned, threads=None)
