"""Small data sets that the tests of this folder share; no test may change them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import data_sharding as ds


@pytest.fixture(scope="session")
def payloads() -> list[bytes]:
    """57 records of 0 to 299 random bytes, all different."""
    random = np.random.default_rng(7)
    lengths = [0, *random.integers(1, 300, 56).tolist()]
    return [random.bytes(length) for length in lengths]


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]) -> Path:
    """The payloads as 4 TFRecord shards."""
    folder = tmp_path_factory.mktemp("records")
    ds.write_shards(folder, "digits", payloads, 4)
    return folder


@pytest.fixture(scope="session")
def catalog(data_folder: Path) -> ds.Catalog:
    return ds.Catalog.index(data_folder)


@pytest.fixture(scope="session")
def by_id(payloads: list[bytes]) -> list[bytes]:
    """The payloads in the order of record ids: shard by shard."""
    return [payload for shard in range(4) for payload in payloads[shard::4]]
