"""A file that is cut short while it is read ends in a sentence: no signal ends the process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import data_sharding as ds

# Each says "at N" when file N is being read, and "changed" once that was noticed.
READING = """if True:
    import sys, numpy as np, data_sharding as ds
    for number, path in enumerate(sys.argv[1:]):
        catalog = ds.Catalog.index(path)
        ids = np.arange(len(catalog))[::-1]
        with ds.RecordReader(catalog) as reader:
            print("at", number, flush=True)
            try:
                while True:
                    reader.read(ids)
            except ds.ChangedDataError as error:
                print("changed", error.hint, flush=True)
"""
INDEXING = """if True:
    import sys, data_sharding as ds
    for number, path in enumerate(sys.argv[1:]):
        print("at", number, flush=True)
        try:
            while True:
                ds.Catalog.index(path)
        except ds.ShardingError as error:  # between two passes, it is a damaged file
            print("changed", error.hint, flush=True)
"""


def files(folder: Path, count: int, suffix: str, record_bytes: int, records: int) -> list[Path]:
    """`count` files of records, each of its own."""
    made = []
    for number in range(count):
        path = folder / f"{number}.{suffix}"
        if suffix == "npy":
            np.save(path, np.full((records, record_bytes), number, np.uint8))
        else:
            with ds.TFRecordWriter(path) as writer:
                for _ in range(records):
                    writer.write(bytes([number]) * record_bytes)
        made.append(path)
    return made


@pytest.mark.parametrize(
    ("script", "suffix", "record_bytes", "records"),
    [(READING, "tfrecord", 3000, 1000), (READING, "npy", 3000, 1000), (INDEXING, "tfrecord", 200, 20_000)],
)
def test_a_file_cut_short_while_it_is_read(
    tmp_path: Path, script: str, suffix: str, record_bytes: int, records: int
) -> None:
    draw = random.Random(7)
    paths = files(tmp_path, 10, suffix, record_bytes, records)
    command = [sys.executable, "-X", "faulthandler", "-c", script, *map(str, paths)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for path in paths:
            line = child.stdout.readline()
            time.sleep(draw.uniform(0.002, 0.02))  # somewhere inside of a pass
            if line:
                with path.open("r+b") as file:
                    file.truncate(draw.choice([0, 5000, path.stat().st_size // 2, path.stat().st_size // 10]))
            assert child.stdout.readline().startswith("changed"), (line, child.stderr.read(), child.wait(10))
        assert child.wait(60) == 0


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_only_our_own_maps_are_mended_and_the_handler_goes(tmp_path: Path) -> None:
    """A SIGBUS of another's map ends the process as before, with the message of the handler before."""
    script = """if True:
        import faulthandler, mmap, os, signal, sys
        from data_sharding.storage.torn_maps import ReadOnlyMap, watching_maps
        faulthandler.enable()
        with open(sys.argv[1], "r+b") as file:
            file.write(bytes(1 << 20))
            file.flush()
            own, other = ReadOnlyMap(file.fileno()), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            file.truncate(100)
        with watching_maps, watching_maps:
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == signal.SIGBUS, "the child's handler"
            else:
                own.bytes[-1]
            print(own.torn, own.bytes[-5:], own.torn, flush=True)
            if sys.argv[2] == "inside":
                other[-1]
        other[-1]
    """
    for where in ("inside", "outside"):
        (tmp_path / where).touch()
        ran = run(script, tmp_path / where, where)
        assert ran.returncode == -signal.SIGBUS
        assert ran.stdout == "False b'\\x00\\x00\\x00\\x00\\x00' True\n"
        assert "Fatal Python error: Bus error" in ran.stderr


def test_threads_that_read_the_same_file_all_say_so(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1, "tfrecord", 3000, 500)
    script = """if True:
        import os, sys, numpy as np, data_sharding as ds
        from concurrent.futures import ThreadPoolExecutor
        catalog = ds.Catalog.index(sys.argv[1])
        with ds.RecordReader(catalog) as reader, ThreadPoolExecutor(4) as pool:
            reader.read(np.arange(3))
            os.truncate(sys.argv[1], 9000)
            asked = [pool.submit(reader.read, np.arange(first, 500, 4)) for first in range(4)]
            print(*(type(one.exception()).__name__ for one in asked))
    """
    ran = run(script, path)
    assert (ran.returncode, ran.stdout) == (0, "ChangedDataError " * 3 + "ChangedDataError\n"), ran.stderr
