"""Decoded batches of one rank, read ahead in the background."""

import dataclasses
import functools
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NotRequired, Self, TypedDict

from data_sharding.checks import at_least, whole
from data_sharding.errors import PlanError
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.decoding import Decode, read_and_decode
from data_sharding.loading.memory_watch import MemoryWatch
from data_sharding.loading.prefetch import OrderedPrefetch
from data_sharding.loading.read_ahead import READ_AHEAD_BYTES, StepReads
from data_sharding.loading.slices import by_slices, slice_places
from data_sharding.loading.step_batches import Fetch, LoadedBatch, decode_step, load_step, load_steps, read_step
from data_sharding.plan.position import State, plan_at, state_at
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.plan.step_slots import SlotPlanner
from data_sharding.reading.record_reader import RecordReader

_RUN_S: Final = 5e-3
"""For so long a thread that has found room makes batches: of those that take longer `prefetch` are ahead, of small ones
as many as this makes."""


class LoaderOptions(TypedDict):
    """The options of `ShardLoader`, for those who pass them on to it."""

    rank: int
    size: int
    slices: NotRequired[int]
    augment: NotRequired[bool | None]
    prefetch: NotRequired[int]
    threads: NotRequired[int]
    processes: NotRequired[int]
    timeout_s: NotRequired[float]
    read_ahead: NotRequired[int]


class _Running(NamedTuple):
    """What works in the background for one epoch."""

    batches: OrderedPrefetch[LoadedBatch]
    reads: StepReads | None  # None: records are read where they are decoded

    def cancel(self) -> None:
        self.batches.cancel()
        if self.reads is not None:
            self.reads.cancel()

    def abandon(self) -> None:
        self.batches.abandon()
        if self.reads is not None:
            self.reads.abandon()

    def close(self) -> None:
        self.batches.close()
        if self.reads is not None:
            self.reads.close()


class ShardLoader:
    """Iterator over one rank's batches of a plan, in order, from `start_step` to the epoch's end; a context manager.

    Each further `for` over it, after the one that reached the end, is the next epoch of the same plan (`plan` says
    which); after a `break`, what is left of the epoch.

    Batches are read and decoded in background threads. An exception there is raised here, at its own step. The reader
    stays open: it is the caller's. A loader that is dropped unclosed ends its threads.

    Threads are enough for decoders that release the GIL (image codecs, numpy on large arrays). For others, the threads
    can hand their batches to processes: with `processes=N` to N that end with this loader, or with `DecodeProcesses`
    instead of `decode` to some that serve one epoch after another.

    Args:
        plan: the epoch to begin with.
        reader: over the catalog that the plan was made for.
        decode: turns k records into arrays of k rows; runs in the background threads, so in several at a time
            if `threads` > 1; or `DecodeProcesses` that do it.
        rank, size: whose slice of each global batch to load.
        slices: slices of so many ranks, from `rank` on, as one batch, where a worker does the work of several; each is
            read and decoded by itself.
        augment: give `decode` random draws, which belong to (plan.seed, plan.epoch, record); None: where making an item
            takes random numbers.
        start_step: first step to load; `plan.steps` gives an empty loader.
        prefetch: batches that may be ready or in the making ahead of the consumer, and what a thread makes within a
            few milliseconds.
        threads: background threads.
        processes: decode in as many processes of its own, 0 for none, or for `threads` of them where making an item
            takes random numbers, whose generators threads would share with the caller; see `DecodeProcesses` for what
            `decode` can be. `prefetch` and `threads` then are at least the number of processes.
        timeout_s: longest wait for one batch, in seconds.
        read_ahead: bytes of coming steps that are read before they are decoded, where records come over a network and
            no processes decode; 0: each step is read when it is decoded.

    Raises:
        PlanError: an argument is out of range or not whole, the plan was made for other data than the reader's, or
            `decode` cannot be sent to a process.
    """

    def __init__(
        self,
        plan: ShardPlan,
        reader: RecordReader,
        decode: Decode | DecodeProcesses,
        *,
        rank: int,
        size: int,
        slices: int = 1,
        augment: bool | None = None,
        start_step: int = 0,
        prefetch: int = 2,
        threads: int = 1,
        processes: int = 0,
        timeout_s: float = 300.0,
        read_ahead: int = READ_AHEAD_BYTES,
    ) -> None:
        plan.require_catalog(reader.catalog)
        self.plan = plan
        at_least(1, "prefetch", prefetch, "Loading needs at least one batch ahead.")
        at_least(1, "threads", threads, "Loading needs at least one thread.")
        plan.step_at(whole("start_step", start_step) * plan.global_batch)
        at_least(1, "slices", slices, "A loader reads at least its own slice.")
        plan.shard(rank, size, 0)
        plan.shard(rank + slices - 1, size, 0)
        processes = whole("processes", processes)
        if reader.catalog.format.draws and not isinstance(decode, DecodeProcesses):
            processes = processes or threads
        fetch, at_a_time = _fetcher(reader, decode, processes)
        here = None if slices > 1 else _decode_here(decode, fetch)
        read_slices = by_slices(fetch, slice_places(plan.global_batch, rank, size, slices)) if slices > 1 else fetch
        self._ended = False
        self._memory = MemoryWatch(plan, reader, rank)

        def begin(plan: ShardPlan, step: int) -> _Running:
            planner = SlotPlanner(plan, rank, size, augment, reader.gains_by_blocks, slices)
            who = f"epoch {plan.epoch} for rank {rank} of {size}"
            reads: StepReads | None = None
            produce = functools.partial(load_step, planner, read_slices, who)
            several = None if here is None else functools.partial(load_steps, planner, reader, here, who)
            if here is not None and read_ahead and reader.waits_for_network():
                read = functools.partial(read_step, planner, reader)
                reads = StepReads(read, step, plan.steps, budget=read_ahead, timeout_s=timeout_s)
                produce, several = functools.partial(decode_step, planner, reads, reader, here, who), None
            batches = OrderedPrefetch(
                produce,
                step,
                plan.steps,
                depth=max(prefetch, at_a_time),
                threads=max(threads, at_a_time),
                timeout_s=timeout_s,
                run_s=0.0 if several is None else _RUN_S,
                produce_several=several,
            )
            return _Running(batches, reads)

        self._begin, self._next_step = begin, whole("start_step", start_step)
        self._processes = fetch if isinstance(fetch, DecodeProcesses) and fetch is not decode else None
        self._running = begin(plan, start_step)
        self._abandon = weakref.finalize(self, _abandon, self._running, self._processes)

    def __iter__(self) -> Self:
        """Itself; after the epoch's last batch, turned to the next epoch."""
        if self._ended:
            self._turn_to(dataclasses.replace(self.plan, epoch=self.plan.epoch + 1), 0)
        return self

    def __next__(self) -> LoadedBatch:
        """The next batch. Errors as `RecordReader.read` and `decode`, LoaderTimeoutError; PlanError once closed."""
        self._running.batches.start()
        self._memory.look()
        try:
            batch = self._running.batches.take()
        except StopIteration:
            self._ended = True
            raise
        self._next_step = batch.step + 1
        return batch

    def _turn_to(self, plan: ShardPlan, step: int) -> None:
        is_open = self._abandon.detach() is not None
        self._running.abandon()
        self.plan, self._next_step, self._ended = plan, step, False
        self._running = self._begin(plan, step)
        self._abandon = weakref.finalize(self, _abandon, self._running, self._processes)
        if not is_open:
            self._abandon()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.plan.steps

    def state_dict(self) -> State:
        """Where the next batch begins: epoch, samples seen in it over all ranks, and the plan's fingerprint.

        It counts what `next` has returned, not what was read ahead, and is the same on all ranks: save it on one.
        """
        return state_at(self.plan, self._next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position, which any number of ranks may have saved; what was read ahead is given up.

        The end of an epoch is the begin of the next one.

        Raises PlanError: the state is of other data or of another plan, or is none.
        """
        plan, step = plan_at(self.plan, state)
        if step == plan.steps:  # else the next `for` would be over at once
            plan, step = dataclasses.replace(plan, epoch=plan.epoch + 1), 0
        self._turn_to(plan, step)

    def start(self) -> None:
        """Begin to read ahead; otherwise the `with` block or the first batch does."""
        self._running.batches.start()

    def abandon(self) -> None:
        """Read no more, and let neither `close` nor the end of the block wait for reads that are under way."""
        self._running.abandon()
        self._abandon()

    def close(self) -> None:
        """End its threads and processes. May be called twice. LoaderTimeoutError if one is busy after `timeout_s`."""
        self._abandon()
        self._running.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # a thread that is stuck must not delay, nor hide, the error that is on its way
            self._abandon()


def _fetcher(reader: RecordReader, decode: Decode | DecodeProcesses, processes: int) -> tuple[Fetch, int]:
    """What makes a batch of ids, and how many batches it can make at a time without waiting."""
    if isinstance(decode, DecodeProcesses):
        if processes:
            fact = f"DecodeProcesses and processes={processes} were given."
            raise PlanError(fact, "There can be only one set of processes.", "leave out processes.")
        if decode.catalog.fingerprint != reader.catalog.fingerprint:
            raise PlanError(
                "The decode processes were made for other data than the reader's.",
                "Record ids of one mean nothing in the other.",
                "make them with DecodeProcesses(reader, ...).",
            )
        return decode, len(decode)
    if processes:
        return DecodeProcesses(reader, decode, processes), processes
    return functools.partial(read_and_decode, reader, decode), 1


def _decode_here(decode: Decode | DecodeProcesses, fetch: Fetch) -> Decode | None:
    """What decodes whole batches in threads of this process; None: processes do it."""
    return None if isinstance(decode, DecodeProcesses) or isinstance(fetch, DecodeProcesses) else decode


def _abandon(running: _Running, processes: DecodeProcesses | None) -> None:
    running.cancel()
    if processes is not None:
        processes.close()  # frees threads that wait for them
