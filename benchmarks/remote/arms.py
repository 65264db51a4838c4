"""The ways to read the records: each is a generator of batches of payloads, from a URL, with an empty cache folder."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from benchmarks.remote.data import SHARDS

BATCH: Final = 256
_BUFFER: Final = 10_000

Batches = Iterator[list[bytes]]
Shuffle = Literal["global", "block"]


class Arm(NamedTuple):
    """How a page calls it, what it fetches, what it does, and what is imported before the clock starts.

    `is_earlier`: it is a package data_sharding of an earlier version, of which only names are used that it had.
    """

    label: str
    fetches: str
    read: Callable[[str, Path], Batches]
    imports: tuple[str, ...] = ("data_sharding", "data_sharding.storage.remote", "fsspec.implementations.http")
    is_earlier: bool = False

    @property
    def is_ours(self) -> bool:
        return "data_sharding" in self.imports


def _ours(url: str, cache: Path, shuffle: Shuffle, keeps: bool) -> Batches:
    import data_sharding as ds

    catalog, plan = _planned(url, shuffle)
    with (
        ds.RecordReader(catalog, cache=ds.FileCache(cache) if keeps else None) as reader,
        ds.ShardLoader(plan, reader, _as_objects, rank=0, size=1) as loader,
    ):
        for batch in loader:
            yield batch.features["payload"][batch.weights > 0].tolist()


def _earlier(shuffle: Shuffle) -> Arm:
    def read(url: str, cache: Path) -> Batches:
        import data_sharding as ds

        del cache
        catalog = ds.Catalog.index(_urls(url))
        plan = ds.ShardPlan.for_catalog(catalog, global_batch=BATCH, seed=0, epoch=0, shuffle=shuffle)
        with (
            ds.RecordReader(catalog) as reader,
            ds.ShardLoader(plan, reader, _as_objects, rank=0, size=1) as loader,
        ):
            for batch in loader:
                yield batch.features["payload"][batch.weights > 0].tolist()

    imports = ("data_sharding", "fsspec.implementations.http")
    return Arm(f"data_sharding, `{shuffle}`, earlier version", "an index of all bytes; records", read, imports, True)


def _urls(url: str) -> list[str]:
    return [f"{url}/tfrecord/part-{shard:05d}.tfrecord" for shard in range(SHARDS)]


def _planned(url: str, shuffle: Shuffle) -> tuple[Any, Any]:
    """The catalog, from the index that was published, and the plan."""
    import data_sharding as ds

    catalog = ds.Catalog.published(_urls(url))
    if catalog is None:
        raise RuntimeError(f"no index was published in {url}/tfrecord")
    return catalog, ds.ShardPlan.for_catalog(catalog, global_batch=BATCH, seed=0, epoch=0, shuffle=shuffle)


def _as_objects(records: Any) -> dict[str, Any]:
    import numpy as np

    payloads = np.empty(len(records), object)
    payloads[:] = records
    return {"payload": payloads}


def _through_fsspec(kind: str) -> Callable[[str, Path], Batches]:
    """The same records, each read through one of fsspec's caches. (Over HTTP these do not know the sizes of files.)"""

    def read(url: str, cache: Path) -> Batches:
        import fsspec

        catalog, plan = _planned(url, "global")
        fs = fsspec.filesystem(kind, target_protocol="http", cache_storage=str(cache))
        begins, ends = catalog.offsets, catalog.offsets + catalog.lengths
        opened = [fs.open(file.path) for file in catalog.files]
        for step in range(plan.steps):
            batch = []
            for record in plan.shard(0, 1, step).ids[: len(catalog) - step * BATCH].tolist():
                file = opened[catalog.file_ids[record]]
                file.seek(begins[record])
                batch.append(file.read(int(ends[record] - begins[record])))
            yield batch

    return read


def _streaming(url: str, cache: Path) -> Batches:
    os.environ |= {"S3_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us"}
    from benchmarks.remote.streaming_alone import streaming

    dataset = streaming.StreamingDataset(
        remote="s3://mds", local=str(cache), batch_size=BATCH, shuffle=True, shuffle_seed=17
    )
    yield from _batched(sample["bin"] for sample in dataset)


def _webdataset(url: str, cache: Path) -> Batches:
    del cache
    import webdataset as wds  # type: ignore[import-not-found,import-untyped,unused-ignore]

    urls = [f"pipe:curl -s -f {url}/tar/part-{shard:05d}.tar" for shard in range(SHARDS)]
    dataset = wds.WebDataset(urls, shardshuffle=SHARDS, seed=17).shuffle(_BUFFER, initial=_BUFFER)
    yield from _batched(sample["bin"] for sample in dataset)


def _batched(samples: Iterator[bytes]) -> Batches:
    while batch := list(itertools.islice(samples, BATCH)):
        yield batch


ARMS: Final = {
    "cached": Arm(
        "**data_sharding**, `global`, cache",
        "whole files; records until then",
        lambda url, cache: _ours(url, cache, "global", keeps=True),
    ),
    "cached_block": Arm(
        "data_sharding, `block`, cache",
        "whole files; records until then",
        lambda url, cache: _ours(url, cache, "block", keeps=True),
    ),
    "block": Arm(
        "data_sharding, `block`, no cache",
        "blocks of records",
        lambda url, cache: _ours(url, cache, "block", keeps=False),
    ),
    "requests": Arm(
        "data_sharding, `global`, no cache",
        "records",
        lambda url, cache: _ours(url, cache, "global", keeps=False),
    ),
    "earlier_global": _earlier("global"),
    "earlier_block": _earlier("block"),
    "filecache": Arm("fsspec's filecache, our `global` order", "whole files", _through_fsspec("filecache")),
    "blockcache": Arm("fsspec's blockcache, our `global` order", "5 MiB", _through_fsspec("blockcache")),
    "streaming": Arm("mosaicml-streaming, py1e", "whole files", _streaming, ("benchmarks.remote.streaming_alone",)),
    "webdataset": Arm(f"webdataset, a buffer of {_BUFFER:,}", "whole files", _webdataset, ("webdataset",)),
}
