"""Records by id, checked against their stored CRC."""

import copy
import dataclasses
import functools
import itertools
import operator
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import NoSuchRecordError
from data_sharding.formats.joined import JoinedFormat
from data_sharding.formats.record_format import Damaged, RecordBatch
from data_sharding.freed_memory import keep_freed_memory
from data_sharding.reading.damaged_records import damaged_record, verify_file_of, what_is_wrong
from data_sharding.reading.joined_records import JoinedRecords
from data_sharding.reading.kept_spans import KeptSpans
from data_sharding.reading.record_table import OnCorrupt, RecordTable
from data_sharding.reading.wanted import Wanted
from data_sharding.sample_random import SampleRandom
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.cached_file import ReaderFiles
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.torn_maps import watching_maps

_REQUEST_THREADS: Final = 32
_STAND_IN_BATCH: Final = 64


class ReaderOptions(TypedDict, total=False):
    """The options of `RecordReader`, for those who pass them on to it."""

    check_crc: bool
    max_open_files: int
    on_corrupt: OnCorrupt
    cache: FileCache | None


class RecordReader(AbstractContextManager["RecordReader"]):
    """Reads records of a catalog at random, a batch at a time. Safe to use from many threads; a context manager.

    Local files are memory-mapped on first use, remote ones asked for all spans of a batch at once. A pickled copy opens
    the files for itself.

    Args:
        check_crc: compare every payload's checksum with the catalog's, where the format has one.
        max_open_files: files kept open at a time, but no more than a quarter of what the process may open in addition.
        on_corrupt: what `load` does with a damaged record: "raise"; or "mask" and "quarantine", which both hand out
            another record's payload in its place, marked as not intact.
        cache: where copies of remote files are kept. A file is read from the store until its copy is there.
    """

    def __init__(
        self,
        catalog: RecordTable,
        check_crc: bool = True,
        max_open_files: int = 256,
        on_corrupt: OnCorrupt = "raise",
        cache: FileCache | None = None,
    ) -> None:
        keep_freed_memory()
        self.catalog, self.check_crc, self.max_open_files = catalog, check_crc, max_open_files
        self.on_corrupt: OnCorrupt = on_corrupt
        self.cache = cache
        opener = catalog.format.open if cache is None else functools.partial(catalog.format.open_keeping, cache=cache)
        self._files = ReaderFiles(catalog.files, opener, max_open_files, cache)
        # All files are alike, but one without records may be damaged.
        self._row_type = functools.cache(functools.partial(catalog.format.row_type, catalog.files[catalog.file_ids[0]]))
        self._joined = JoinedRecords(catalog, self._of_part) if isinstance(catalog.format, JoinedFormat) else None
        self._under_way: dict[int, NDArray[np.int64]] = {}  # ids by thread
        self._kept = KeptSpans(self._raw)

    def read(self, ids: NDArray[np.int64]) -> list[Any]:
        """The payloads of records ids int64[k], in the order of `ids`, which may repeat.

        Raises:
            CorruptRecordError: a payload does not match its stored CRC or framing; names file, byte and record id.
            ChangedDataError: a file has gone or is not the one that was indexed.
            NoSuchRecordError: an id is not in the catalog.
            OpenFilesLimitError: the process may open no further file.
            PlanError: the reader is closed.
        """
        ids = self._checked_ids(ids)
        payloads, intact = self.unpacked(ids)
        self._require_intact(ids, payloads, intact)
        return list(payloads)

    def spans(self, ids: NDArray[np.int64], ranges: NDArray[np.int64] | None = None) -> list[bytes]:
        """The bytes of records ids int64[k] as they are in the file, unchecked; `ranges` as in `Wanted`.

        Errors as `read`, but CorruptRecordError.
        """
        ids = self._checked_ids(ids)
        return self._raw(ids) if ranges is None else self._kept.read(ids, ranges)

    def load(
        self,
        ids: NDArray[np.int64],
        random: SampleRandom | None = None,
        longest: int | None = None,
        spans: list[bytes] | None = None,
    ) -> RecordBatch:
        """Records ids int64[k] with their labels, `random` and `longest` passed on; damaged ones as `on_corrupt` says.

        `spans` is what the method of that name has read; None: it is read now.
        Errors as `read`, but CorruptRecordError only where `on_corrupt` is "raise", or where nothing near is intact.
        """
        ids = self._checked_ids(ids)
        payloads, intact = self.unpacked(ids, random, spans)
        if self.on_corrupt == "raise":
            self._require_intact(ids, payloads, intact)
        reasons: dict[int, str] = {}
        fits = True
        for slot in [] if intact.all() else np.flatnonzero(~intact).tolist():
            verify_file_of(self.catalog, int(ids[slot]))
            reasons[int(ids[slot])] = what_is_wrong(self.catalog, payloads[slot])
            sound = int(np.argmax(intact))
            if intact[sound]:
                payloads[slot] = payloads[sound]
            else:
                payloads[slot], is_short = self._stand_in(int(ids[slot]), payloads[slot], longest)
                fits = fits and is_short
        batch = self._batch(payloads, ids, self._labels(ids), intact, random, longest if fits else None)
        return dataclasses.replace(batch, reasons=reasons) if reasons else batch

    def load_several(self, batches: Sequence[Wanted]) -> list[RecordBatch]:
        """What `load` returns for each of these batches, read at once, which takes less time if they are small."""
        if self._joined is not None or not self.catalog.format.is_stored:  # each batch has draws of its own
            return [self.load(*batch[:3]) for batch in batches]
        ids = self._checked_ids(np.concatenate([ids for ids, *_ in batches]))
        ranges = [batch.ranges for batch in batches if batch.ranges is not None]
        payloads, intact = self.unpacked(ids, None, self.spans(ids, np.concatenate(ranges)) if ranges else None)
        if not intact.all():  # the stand-in of a damaged record is to be of its own batch
            return [self.load(*batch[:3]) for batch in batches]
        labels = self._labels(ids)
        ends = list(itertools.accumulate(len(ids) for ids, *_ in batches))
        places = [slice(*pair) for pair in itertools.pairwise([0, *ends])]
        return [
            self._batch(payloads[at], part, None if labels is None else labels[at], intact[at], random)
            for at, (part, random, *_) in zip(places, batches, strict=True)
        ]

    @property
    def gains_by_blocks(self) -> bool:
        """Whether neighbours are to be read together: files behind a URL, of which each request costs a round trip."""
        return self.waits_for_network() and self._joined is None and not self.keeps_groups

    @property
    def keeps_groups(self) -> bool:
        """Whether records are decoded, and kept, in groups."""
        return self._joined is None and self.catalog.row_groups is not None

    def raw(self, record_id: int) -> bytes:
        """The bytes of a record's span as they are in the file, damaged or not; none of an item. Errors as `read`."""
        ids = self._checked_ids(np.array([record_id]))
        if self._joined is not None:
            return self._joined.raw(record_id)
        return self._raw(ids)[0] if self.catalog.format.is_stored else b""

    def reading(self) -> list[str]:
        """What threads are reading now, for people who look for the cause of a wait: the first record of each read."""
        if self._joined is not None:
            return self._joined.reading()
        reads = [(ids[0], len(ids)) for ids in list(self._under_way.values()) if len(ids)]
        return [f"record {first}, {self.catalog.describe(int(first))}, and {n - 1} more" for first, n in reads]

    def waits_for_network(self) -> bool:
        """Whether records come over a network now."""
        return not self._files.all_are_here()

    def close(self) -> None:
        """Give up all files. May be called twice."""
        if self._joined is not None:
            self._joined.close()
        self._files.close()
        self._kept.close()
        if self.cache is not None:
            self.cache.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordReader, (self.catalog, self.check_crc, self.max_open_files, self.on_corrupt, self.cache)

    def _batch(
        self,
        payloads: Sequence[Any],
        ids: NDArray[np.int64],
        labels: NDArray[np.int64] | None,
        intact: NDArray[np.bool_],
        random: SampleRandom | None,
        longest: int | None = None,
    ) -> RecordBatch:
        kind = self.catalog.format
        drawn = (random or SampleRandom(0, 0, ids)) if kind.draws else None
        collate = (
            None
            if kind.is_stored
            else functools.partial(kind.collate, longest=longest if kind.pads else None, random=drawn)
        )
        sources = self.catalog.sources(ids)
        more = (self._row_type, collate, sources, longest)
        return RecordBatch(payloads, ids, labels, intact, random, *more, catalog=self.catalog)

    def _labels(self, ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return None if self.catalog.labels is None else self.catalog.labels[ids]

    def _stand_in(self, damaged: int, payload: bytes, longest: int | None) -> tuple[Any, bool]:
        """An intact payload from near a damaged record, for its masked slot: decode functions need a real one.

        Returns it, and whether it is at most as long as `longest`: another one is taken where no such one is found.
        """
        lengths = self.catalog.lengths
        fitting = None if longest is None else np.flatnonzero(lengths <= longest)
        for some in [None] if fitting is None or not len(fitting) else [fitting, None]:
            count, first = (
                (len(self.catalog), damaged) if some is None else (len(some), int(some.searchsorted(damaged)))
            )
            distance = 0 if some is not None else 1
            while distance < count:
                near = (first + np.arange(distance, distance + _STAND_IN_BATCH)) % count
                payloads, intact = self.unpacked(near if some is None else some[near])
                if intact.any():
                    return payloads[int(np.argmax(intact))], longest is None or some is not None
                distance = max(1, 2 * distance)  # what is damaged may be a row group of a million rows
        raise damaged_record(self.catalog, damaged, payload)

    def _of_part(self, part: RecordTable) -> "RecordReader":
        cache = copy.copy(self.cache)  # each reader closes its own
        return RecordReader(part, self.check_crc, self.max_open_files, self.on_corrupt, cache)

    def unpacked(
        self, ids: NDArray[np.int64], random: SampleRandom | None = None, spans: list[bytes] | None = None
    ) -> tuple[Any, NDArray[np.bool_]]:
        """Payloads of records ids int64[k], damaged ones too, and which are intact: bool[k]; for other readers."""
        if self._joined is not None:
            return self._joined.unpacked(ids, random)
        if not self.catalog.format.is_stored:
            items = self._items(ids, random)
            return items, np.array([not isinstance(item, Damaged) for item in items], np.bool_)
        crcs = self.catalog.crcs[ids] if self.catalog.crcs is not None else None
        raw = self._raw(ids) if spans is None else spans
        unpacked = self.catalog.format.unpack(raw, crcs, self.check_crc)
        self._files.is_first = False
        if unpacked.intact.all() or not self._files.give_up_damaged_copies(
            np.unique(self.catalog.file_ids[ids[~unpacked.intact]])
        ):
            return unpacked
        return self.unpacked(ids)

    def _items(self, ids: NDArray[np.int64], random: SampleRandom | None) -> Sequence[Any]:
        thread = threading.get_ident()
        self._under_way[thread] = ids
        try:
            return self.catalog.format.items(self.catalog.offsets[ids], random)
        finally:
            del self._under_way[thread]

    def _raw(self, ids: NDArray[np.int64], apart: NDArray[np.int64] | None = None) -> list[bytes]:
        """The spans of these records; those of unlike numbers in `apart`, int64[k], are never fetched as one."""
        # File by file, so that each is looked up once a batch; within a file in the order of the bytes.
        slots = ids.argsort(kind="stable")
        ordered = ids[slots]
        files, begins = self.catalog.file_ids[ordered], self.catalog.offsets[ordered]
        ends = (begins + self.catalog.lengths[ordered]).tolist()
        changes = files[1:] != files[:-1]
        if apart is not None:
            changes |= np.diff(apart[slots]) != 0
        firsts = [0, *(changes.nonzero()[0] + 1).tolist(), len(ids)] if len(ids) else []
        starts = begins.tolist()
        reads = (
            functools.partial(self._files.get(int(files[first])).spans, starts[first:last], ends[first:last])
            for first, last in itertools.pairwise(firsts)
        )
        threads = _REQUEST_THREADS if self._files.wait_for_network(files[firsts[:-1]]) else 1
        thread = threading.get_ident()
        self._under_way[thread] = ordered
        try:
            with watching_maps:
                spans = for_files(operator.call, reads, threads)
        finally:
            del self._under_way[thread]
        raw = [b""] * len(ids)
        for slot, span in zip(slots.tolist(), itertools.chain.from_iterable(spans), strict=True):
            raw[slot] = span
        return raw

    def _checked_ids(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.asarray(ids, np.int64)
        # As unsigned numbers, negative ids are the largest ones: one comparison instead of two.
        if ids.size and np.maximum.reduce(ids.view(np.uint64)) >= len(self.catalog):
            fact = f"Records from {ids.min()} to {ids.max()} were asked for."
            conflict = f"The catalog has records 0 to {len(self.catalog) - 1}."
            raise NoSuchRecordError(fact, conflict, "use the plan that was made for this catalog.")
        return ids

    def _require_intact(self, ids: NDArray[np.int64], payloads: list[bytes], intact: NDArray[np.bool_]) -> None:
        if not intact.all():
            first = int(np.argmin(intact))
            raise damaged_record(self.catalog, int(ids[first]), payloads[first])
