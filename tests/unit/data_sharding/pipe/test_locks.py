"""One FIFO, two readers: what goes wrong without a lock, and that ours lets the second one go no further."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.pipe_feeding import await_fed

import data_sharding as ds
from data_sharding.pipe.pipe_reader import PipeReader
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator

TIMEOUT_S = 120.0
RECORDS = 3000

# What most training scripts do, and what every one of four processes of a node then does to the same path.
NAIVE = """
import json, struct, sys, google_crc32c
def masked(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
print("opening", flush=True)
count, torn = 0, False
with open(sys.argv[1], "rb") as fifo:
    while header := fifo.read(12):
        if len(header) < 12 or struct.unpack("<I", header[8:])[0] != masked(header[:8]):
            torn = True
            break
        (length,) = struct.unpack("<Q", header[:8])
        data, footer = fifo.read(length), fifo.read(4)
        if len(footer) < 4 or struct.unpack("<I", footer)[0] != masked(data):
            torn = True
            break
        count += 1
print(json.dumps({"count": count, "torn": torn}), flush=True)
"""

OURS = """
import json, sys, time
from data_sharding import ShardingError
from data_sharding.pipe.pipe_reader import PipeReader
begin = time.monotonic()
try:
    reader = PipeReader(sys.argv[1], "train-0", rank=1)
    with reader.open() as one:
        count = len(one.read(10**9))
    print(json.dumps({"count": count}), flush=True)
except ShardingError as error:
    print(json.dumps({"error": str(error), "seconds": time.monotonic() - begin}), flush=True)
"""


@contextmanager
def python(script: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(process.communicate(timeout=timeout_s)[0].splitlines()[-1])
    return content


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> ChannelFeed:
    """Ten megabytes: many times what a FIFO and a reader's buffer hold."""
    payloads = [os.urandom(3000 + number % 977) for number in range(RECORDS)]
    return ChannelFeed((str(ds.write_shards(tmp_path_factory.mktemp("data"), "x", payloads, 1)[0]),))


def test_two_naive_readers_of_one_fifo_lose_the_epoch(tmp_path: Path, feed: ChannelFeed) -> None:
    """Each byte reaches one of them only: records are torn, or one reader gets nothing at all."""
    fifo = tmp_path / "train-0_0"
    os.mkfifo(fifo)
    holder = os.open(fifo, os.O_RDWR)  # lets both open it before the first byte is written
    try:
        with python(NAIVE, fifo) as first, python(NAIVE, fifo) as second:
            for process in (first, second):
                assert process.stdout is not None
                assert process.stdout.readline() == "opening\n"
            wait_until_open(fifo, [first.pid, second.pid])
            os.set_blocking(holder, True)
            write_while_read(holder, Path(feed.files[0]).read_bytes(), [first, second])
            os.close(holder)
            holder = -1
            answers = [answer(process) for process in (first, second)]
    finally:
        if holder >= 0:
            os.close(holder)
    assert sum(each["count"] for each in answers) < RECORDS or 0 in [each["count"] for each in answers], answers
    assert any(each["torn"] or each["count"] == 0 for each in answers), answers


def test_a_naive_reader_that_lost_the_race_waits_for_ever(tmp_path: Path, feed: ChannelFeed) -> None:
    """The winner has the epoch and goes on to its allreduce; the loser never gets past open()."""
    fifo = tmp_path / "train-0_0"
    with PipeSimulator(tmp_path, {"train-0": feed}, 1) as simulator:
        wait_until(fifo.exists)
        with python(NAIVE, fifo) as winner:
            assert answer(winner) == {"count": RECORDS, "torn": False}
        await_fed(simulator, TIMEOUT_S)
    os.mkfifo(fifo)  # as an agent leaves it
    with python(NAIVE, fifo) as loser:
        assert loser.stdout is not None
        assert loser.stdout.readline() == "opening\n"
        with pytest.raises(subprocess.TimeoutExpired):
            loser.wait(2)


def test_our_second_reader_is_refused_at_once(tmp_path: Path, feed: ChannelFeed) -> None:
    """And the first one gets every record."""
    with (
        PipeSimulator(tmp_path, {"train-0": feed}, 1),
        PipeReader(tmp_path, "train-0", rank=0) as reader,
        reader.open(RECORDS) as one,
    ):
        assert len(one.read(10)) == 10
        with python(OURS, tmp_path) as second:
            refused = answer(second)
        assert len(one.read(RECORDS)) == RECORDS - 10
    assert f"Channel train-0 is already being read by rank 0 (process {os.getpid()})." in refused["error"]
    assert "\nHINT: " in refused["error"]
    assert refused["seconds"] < 1


def test_refused_before_the_fifo_exists_and_between_epochs(tmp_path: Path, feed: ChannelFeed) -> None:
    with PipeReader(tmp_path, "train-0") as reader:
        with python(OURS, tmp_path) as second:
            assert "already being read" in answer(second)["error"]
        with PipeSimulator(tmp_path, {"train-0": feed}, 1), reader.open() as one:
            one.await_data()
        with python(OURS, tmp_path) as second:
            assert "already being read" in answer(second)["error"]
    with PipeSimulator(tmp_path, {"train-0": feed}, 1), python(OURS, tmp_path) as second:
        assert answer(second) == {"count": RECORDS}


def test_refused_in_the_same_process(tmp_path: Path) -> None:
    with (
        PipeReader(tmp_path, "train-0"),
        PipeReader(tmp_path, "train-1"),
        pytest.raises(ds.PlanError, match="already being read"),
    ):
        PipeReader(tmp_path, "train-0")
    PipeReader(tmp_path, "train-0").close()


def test_one_fifo_under_two_names(tmp_path: Path) -> None:
    """The lock on the FIFO itself holds where the lock files are different ones."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    os.mkfifo(folders[0] / "train-0_0")
    os.link(folders[0] / "train-0_0", folders[1] / "train-0_0")
    with (
        PipeReader(folders[0], "train-0") as first,
        PipeReader(folders[1], "train-0") as second,
        first.open(),
        pytest.raises(ds.PlanError, match="already being read by another process"),
    ):
        second.open()


def test_a_killed_reader_leaves_no_lock(tmp_path: Path) -> None:
    hold = "import sys; from data_sharding.pipe.pipe_reader import PipeReader; r = PipeReader(sys.argv[1], 'train-0')"
    with python(f"{hold}; print('held', flush=True); sys.stdin.read()", tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ds.PlanError, match="already being read"):
            PipeReader(tmp_path, "train-0")
        holder.send_signal(signal.SIGKILL)
        holder.wait(TIMEOUT_S)
    PipeReader(tmp_path, "train-0").close()


FORKED = """
import os, sys
from data_sharding import PlanError
from data_sharding.pipe.pipe_reader import PipeReader

reader = PipeReader(sys.argv[1], "train-0", timeout_s=20)
one = reader.open()
assert len(one.read(5)) == 5
kinds = {}

def attempt(what):
    try:
        what()
    except PlanError as error:
        return str(error)
    return "no error"

child = os.fork()
if child == 0:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    mine = {os.readlink(link) for link in links if os.path.lexists(link)}
    said = [attempt(lambda: one.read(1)), attempt(reader.open), attempt(lambda: PipeReader(sys.argv[1], "train-0"))]
    one.close()
    reader.close()
    wrong = [link for link in mine if link.startswith(sys.argv[1])]
    right = all("forked from it" in text for text in said[:2]) and "already being read" in said[2]
    os._exit(0 if right and not wrong else 9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

sleeper = os.fork()
if sleeper == 0:
    import time
    time.sleep(600)
    os._exit(0)
print(len(one.read(10**9)), flush=True)
one.close()
reader.close()
PipeReader(sys.argv[1], "train-0").close()
os.kill(sleeper, 9)
os.waitpid(sleeper, 0)
"""


def test_a_forked_child_is_refused_and_holds_nothing(tmp_path: Path, feed: ChannelFeed) -> None:
    """The parent goes on unharmed, and a child that lives on keeps neither its lock nor the FIFO's end."""
    with PipeSimulator(tmp_path, {"train-0": feed}, 1) as simulator:
        done = subprocess.run(
            [sys.executable, "-c", FORKED, str(tmp_path)], capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == RECORDS - 5
        await_fed(simulator, TIMEOUT_S)


EARLY = """
import os, sys, time
from data_sharding.pipe.pipe_reader import PipeReader
reader = PipeReader(sys.argv[1], "train-0", timeout_s=20, buffer_bytes=1)
one = reader.open()
one.read(1)
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
one.close()
print(child, flush=True)
sys.stdin.read()
os.kill(child, 9)
"""


def test_a_forked_child_does_not_keep_the_writer_waiting(tmp_path: Path, feed: ChannelFeed) -> None:
    """An inherited reading end would keep EPIPE from the writer, which would wait until the child ends."""
    with PipeSimulator(tmp_path, {"train-0": feed}, 1) as simulator, python(EARLY, tmp_path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        await_fed(simulator, TIMEOUT_S)
        os.kill(child, 0)  # it lives
        process.communicate("", timeout=TIMEOUT_S)
    assert simulator.deliveries()["train-0"][0].closed_early


DAEMON = """
import multiprocessing, sys
from data_sharding import PlanError
from data_sharding.pipe.pipe_reader import PipeReader
def work(base):
    try:
        PipeReader(base, "train-0")
    except PlanError as error:
        return str(error)
    return "no error"
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        print(pool.apply_async(work, (sys.argv[1],)).get(20))
"""


def test_a_data_loading_subprocess_is_refused(tmp_path: Path) -> None:
    """Even where nobody holds the channel: with two such workers the race would be back."""
    command = [sys.executable, "-c", DAEMON, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert "a data-loading subprocess" in done.stdout


def wait_until_open(path: Path, processes: list[int]) -> None:
    def has_it(process: int) -> bool:
        folder = Path(f"/proc/{process}/fd")
        return any(os.readlink(link) == str(path) for link in folder.iterdir() if link.is_symlink())

    wait_until(lambda: all(has_it(process) for process in processes))


def wait_until(condition: Any) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def write_while_read(descriptor: int, content: bytes, readers: list[subprocess.Popen[str]]) -> None:
    """Write as long as somebody reads: a naive reader that met a torn record leaves."""
    view = memoryview(content)
    os.set_blocking(descriptor, False)
    end = time.monotonic() + TIMEOUT_S
    while view and any(reader.poll() is None for reader in readers):
        assert time.monotonic() < end
        try:
            view = view[os.write(descriptor, view[: 2**16]) :]
        except BlockingIOError:
            time.sleep(0.001)
