"""Split record files over the workers of a training job: each record is read once, and no worker waits for another.

The way of a record, all of it plain arithmetic that every rank does by itself:

    position     an epoch is steps * G positions, for N records, global batch G and steps = ceil(N / G):
                 never a function of what some rank happened to read
    permutation  position p < N is record permutation(p), a keyed bijection on [0, N) computed on demand
                 from (seed, epoch): O(1) memory, O(1) seek
    slice        step s is positions [s*G, (s+1)*G); rank r of W reads slots [r*G//W, (r+1)*G//W) of it, so which
                 records form a step never depends on W
    mask         positions >= N are slots of weight 0 that hold some real record: shapes are static, no rank runs
                 out of data before another, and no record counts twice

    Catalog      where each record is (file, offset, length, CRC), with a fingerprint of the data
    ShardPlan    (catalog, G, seed, epoch) -> record ids and weights for (rank, size, step)
    RecordReader ids -> payloads, checked against their CRC
    ShardLoader  a rank's decoded batches, read ahead in background threads
    CoverageAudit counts what was read, and names what is missing or duplicate

One integer, the position, is the whole state: resume at any step with any number of ranks. The package reads no
environment variable: callers pass rank and size. Every error is a `ShardingError`.
"""

from data_sharding import example
from data_sharding.audit.coverage_audit import CoverageAudit
from data_sharding.catalog import Catalog
from data_sharding.errors import (
    BadRecord,
    CacheError,
    CatalogError,
    ChangedDataError,
    CorruptRecordError,
    ExampleError,
    LoaderTimeoutError,
    MissingDataError,
    PlanError,
    ShardingError,
    UnlikeItemsError,
)
from data_sharding.formats.record_format import RecordBatch, RecordFormat, RecordIndex
from data_sharding.formats.registry import format_named
from data_sharding.formats.tfrecord import scan
from data_sharding.formats.writers import TFRecordWriter, write_shards
from data_sharding.kept_blocks import keep_at_most
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.shard_loader import ShardLoader
from data_sharding.loading.step_batches import LoadedBatch
from data_sharding.objects.packing import PackedSequences
from data_sharding.permutation import Permutation
from data_sharding.plan.position import plan_at, state_at
from data_sharding.plan.shard_plan import ShardPlan, StepBatch
from data_sharding.plan.summary import PlanSummary, per_rank
from data_sharding.reading.record_reader import RecordReader
from data_sharding.sample_random import SampleRandom
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.file_entry import FileEntry

__all__ = [
    "BadRecord",
    "CacheError",
    "Catalog",
    "CatalogError",
    "ChangedDataError",
    "CorruptRecordError",
    "CoverageAudit",
    "DecodeProcesses",
    "ExampleError",
    "FileCache",
    "FileEntry",
    "LoadedBatch",
    "LoaderTimeoutError",
    "MissingDataError",
    "PackedSequences",
    "Permutation",
    "PlanError",
    "PlanSummary",
    "RecordBatch",
    "RecordFormat",
    "RecordIndex",
    "RecordReader",
    "SampleRandom",
    "ShardLoader",
    "ShardPlan",
    "ShardingError",
    "StepBatch",
    "TFRecordWriter",
    "UnlikeItemsError",
    "example",
    "format_named",
    "keep_at_most",
    "per_rank",
    "plan_at",
    "scan",
    "state_at",
    "write_shards",
]
