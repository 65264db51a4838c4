"""The records that every arm reads: made from a seed, so that they can be made again anywhere."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

# Files of a data set, whatever the format.
SHARDS: Final = 8
_SEED: Final = 20261121


@dataclass(frozen=True)
class DataSet:
    """A data set, and how it is to be read.

    Attributes:
        name: its folder's.
        records: how many.
        batch: records of a batch.
        shuffle_buffer: records held back by those that shuffle through a buffer.
        kind: which payloads: "fixed", "jpeg" or "skewed".
        bytes_each: payload bytes; the median for "skewed", not used for "jpeg".
    """

    name: str
    records: int
    batch: int
    shuffle_buffer: int
    kind: str
    bytes_each: int = 0

    def payloads(self) -> Iterator[bytes]:
        """All payloads, in order; the same in every call."""
        return _MAKERS[self.kind](self, np.random.default_rng([_SEED, self.records]))

    def as_json(self) -> dict[str, str | int]:
        """For a request to an arm's process."""
        return asdict(self)


@dataclass(frozen=True)
class Content:
    """What reading a whole data set must give; `crc_sum` does not depend on the order, `crc_chain` does."""

    records: int
    total_bytes: int
    crc_sum: int
    crc_chain: int

    @classmethod
    def of(cls, payloads: Iterable[bytes]) -> Content:
        """Count and check-sum payloads."""
        records = total = crc_sum = crc_chain = 0
        for payload in payloads:
            crc = zlib.crc32(payload)
            records, total, crc_sum = records + 1, total + len(payload), crc_sum + crc
            crc_chain = zlib.crc32(crc.to_bytes(4, "little"), crc_chain)
        return cls(records, total, crc_sum, crc_chain)

    def save(self, path: Path) -> None:
        """Write to a JSON file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Content:
        """Read what `save` wrote."""
        return cls(**json.loads(path.read_text()))


def _fixed(data: DataSet, random: np.random.Generator) -> Iterator[bytes]:
    return (random.bytes(data.bytes_each) for _ in range(data.records))


def _skewed(data: DataSet, random: np.random.Generator) -> Iterator[bytes]:
    """Log-normal sizes (sigma 1.5: the mean is three times the median), from 64 bytes to 1 MiB."""
    sizes = np.clip(data.bytes_each * np.exp(random.normal(0.0, 1.5, data.records)), 64, 1 << 20)
    return (random.bytes(int(size)) for size in sizes)


def _jpeg(data: DataSet, random: np.random.Generator) -> Iterator[bytes]:
    """Pictures of 500 x 375 pixels (ImageNet's usual size), with noise to make files of about 110 KB."""
    from PIL import Image  # only this data set needs it, and only while it is made

    for _ in range(data.records):
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((500, 375)), np.int16)
        noisy = np.clip(picture + random.integers(-22, 23, picture.shape, dtype=np.int16), 0, 255).astype(np.uint8)
        with io.BytesIO() as file:
            Image.fromarray(noisy).save(file, "JPEG", quality=90)
            yield file.getvalue()


_MAKERS: Final[dict[str, Callable[[DataSet, np.random.Generator], Iterator[bytes]]]] = {
    "fixed": _fixed,
    "skewed": _skewed,
    "jpeg": _jpeg,
}


def data_sets(scale: float) -> dict[str, DataSet]:
    """All data sets by name; `scale` multiplies the number of records of those whose speed is measured."""
    sets = (
        DataSet("3kb", _scaled(40960, scale, 256), 256, 10000, "fixed", 3072),
        DataSet("jpeg", _scaled(2048, scale, 64), 64, 512, "jpeg"),
        DataSet("skewed", _scaled(16384, scale, 256), 256, 4096, "skewed", 2048),
        DataSet("few", 10_000, 256, 1000, "fixed", 64),
        DataSet("many", 1_000_000, 256, 1000, "fixed", 64),
        DataSet("damaged", 1024, 256, 256, "fixed", 3072),
    )
    return {data.name: data for data in sets}


def _scaled(records: int, scale: float, batch: int) -> int:
    return max(4, round(records * scale / batch)) * batch
