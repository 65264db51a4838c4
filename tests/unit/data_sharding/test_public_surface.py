"""What the package exports, what it imports, and how its errors read."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import data_sharding as ds

PUBLIC = [
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

LIGHT = """
import sys
import data_sharding
heavy = {"torch", "tensorflow", "keras", "horovod", "hvdtrain", "launch", "jax"} & set(sys.modules)
assert not heavy, heavy
assert "google.protobuf" not in sys.modules
data_sharding.example.encode({"x": 1})
assert "google.protobuf" in sys.modules
"""


def test_exports() -> None:
    assert sorted(PUBLIC) == sorted(ds.__all__)
    assert all(hasattr(ds, name) for name in PUBLIC)


def test_importing_is_light_and_needs_no_environment() -> None:
    root = Path(ds.__file__).parent.parent
    command = [sys.executable, "-W", "error", "-c", LIGHT]
    subprocess.run(command, cwd=root, env={"PATH": os.environ["PATH"]}, check=True, timeout=60)


def test_every_error_is_one_family_with_three_parts() -> None:
    errors = [getattr(ds, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, ds.ShardingError) for error in errors)
    for error in errors:
        located = {"path": "a", "offset": 3} if error is ds.CorruptRecordError else {}
        raised = error("Fact.", "Conflict.", "do this.", **located)
        assert str(raised) == "Fact. Conflict.\nHINT: do this."
        assert (raised.fact, raised.conflict, raised.hint) == ("Fact.", "Conflict.", "do this.")


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "example"])
def test_everything_public_is_documented(name: str) -> None:
    public = getattr(ds, name)
    assert public.__doc__
    if inspect.isclass(public):
        methods = [member for key, member in vars(public).items() if key[0] != "_" and inspect.isfunction(member)]
        assert all(method.__doc__ for method in methods)
