"""A reader gets its records, or within its deadline an error that says whose they were and how far it came."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from support.pipe_feeding import await_fed

import data_sharding as ds
from data_sharding.pipe.fifo import PassName, await_fifo
from data_sharding.pipe.pipe_reader import PipePass, PipeReader
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator

TIMEOUT_S = 60.0
SHORT_S = 0.3


class Writer:
    """Runs `write(descriptor)` on a FIFO in a thread; leaving the block ends a writer that waits for a reader."""

    def __init__(self, path: Path, write: Callable[[int], None], *, make: bool = True) -> None:
        self._path = path
        if make:
            os.mkfifo(path)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(write,), daemon=True)

    def _run(self, write: Callable[[int], None]) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY)
            try:
                write(descriptor)
            finally:
                os.close(descriptor)
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._path.exists():
            os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
        self.join()


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


@pytest.fixture
def stream(data_folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(data_folder.iterdir()))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "fifos"
    folder.mkdir()
    return folder


def reader_of(base: Path, timeout_s: float = TIMEOUT_S, **options: int) -> PipeReader:
    return PipeReader(base, "train-0", rank=3, timeout_s=timeout_s, **options)


def refused(base: Path, stream: bytes, expected: int | None = None, timeout_s: float = TIMEOUT_S) -> ds.ShardingError:
    """What reading a FIFO that delivers `stream` raises."""
    with (
        Writer(base / "train-0_0", lambda descriptor: write_all(descriptor, stream)),
        reader_of(base, timeout_s) as reader,
        reader.open(expected) as one,
        pytest.raises(ds.ShardingError) as caught,
    ):
        read_all(one)
    return caught.value


def read_all(one: PipePass) -> None:
    while one.read(10):
        pass


def test_three_epochs_in_sequence(base: Path, data_folder: Path, by_id: list[bytes]) -> None:
    feed = ChannelFeed(tuple(str(path) for path in sorted(data_folder.iterdir())))
    with PipeSimulator(base, {"train-0": feed}, 3) as simulator, reader_of(base) as reader:
        for epoch in range(3):
            assert reader.epoch == epoch
            with reader.open(len(by_id)) as one:
                got = []
                while records := one.read(5):
                    got += records
                assert got == by_id
                assert one.read(5) == []
        await_fed(simulator, TIMEOUT_S)
    assert [path.name for path in base.iterdir()] == [".train-0.lock"]


def test_records_larger_than_pipe_and_buffer(base: Path) -> None:
    payload = bytes(range(256)) * 20_000
    path = ds.write_shards(base / "data", "big", [payload, b"", payload], 1)[0]
    feed = ChannelFeed((str(path),))
    with PipeSimulator(base, {"train-0": feed}, 1), reader_of(base, buffer_bytes=1) as reader, reader.open(3) as one:
        assert one.read(3) == [payload, b"", payload]


def test_memory_is_bounded(base: Path) -> None:
    """A reader that takes nothing stops the writer after the buffer, one chunk in hand, and what the pipe holds."""
    written: list[int] = []

    def write(descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        # Half a second without room: the reader has stopped taking.
        while poll.poll(500 if sum(written) >= 3 * 2**20 else TIMEOUT_S * 1000):
            written.append(os.write(descriptor, bytes(2**16)))

    with (
        Writer(base / "train-0_0", write) as writer,
        reader_of(base, buffer_bytes=3 * 2**20) as reader,
        reader.open(),
    ):
        writer.join()
    assert writer.error is None
    assert 3 * 2**20 <= sum(written) <= 6 * 2**20


def test_a_fifo_that_never_appears(base: Path) -> None:
    os.mkfifo(base / "train-1_0")
    begin = time.monotonic()
    with reader_of(base, SHORT_S) as reader, pytest.raises(ds.LoaderTimeoutError) as caught:
        reader.open()
    assert time.monotonic() - begin >= SHORT_S
    assert "train-0_0 (channel train-0, epoch 0, of rank 3) did not appear within 0.3 s" in str(caught.value)
    assert "FIFOs there are of channels train-1." in str(caught.value)
    with pytest.raises(ds.LoaderTimeoutError, match="did not appear"):
        await_fifo(PassName(base, "train-0", 0, 3), 0)


def test_an_agent_that_is_at_a_later_epoch(base: Path, data_folder: Path) -> None:
    """The next job on it waits for an epoch that is over: no use in waiting the whole time."""
    feed = ChannelFeed(tuple(str(path) for path in sorted(data_folder.iterdir())))
    with PipeSimulator(base, {"train-0": feed, "train-1": feed}, 9) as simulator:
        with reader_of(base) as first:
            for _ in range(3):
                with first.open() as one:
                    one.await_data()
        begin = time.monotonic()
        with reader_of(base) as second, pytest.raises(ds.PlanError) as caught:
            second.open()
        assert time.monotonic() - begin < TIMEOUT_S / 2
        assert "train-0_0 (channel train-0, epoch 0, of rank 3) is not there, but train-0_3 is." in str(caught.value)
        assert "HINT: restart the agent" in str(caught.value)
        assert len(simulator.deliveries()["train-0"]) == 3


def test_a_later_fifo_that_is_only_early(base: Path, stream: bytes, by_id: list[bytes]) -> None:
    """An agent may make its FIFOs in any order, if it makes them."""
    for name in ("train-0_1", "train-0_x", "train-0-0_1"):
        os.mkfifo(base / name)
    threading.Timer(SHORT_S, lambda: os.mkfifo(base / "train-0_0")).start()
    with (
        reader_of(base) as reader,
        reader.open() as one,
        Writer(base / "train-0_0", lambda descriptor: write_all(descriptor, stream), make=False),
    ):
        assert one.read(100) == by_id


def test_what_the_system_refuses(base: Path) -> None:
    with pytest.raises(ds.MissingDataError, match="cannot be locked: File name too long"):
        PipeReader(base, "x" * 300)
    (base / "train-0_0").symlink_to("train-0_0")
    with reader_of(base) as reader, pytest.raises(ds.MissingDataError, match="cannot be read: Too many levels"):
        reader.open()


def test_a_fifo_of_another_user() -> None:
    """In a folder that can be looked at, and not written to."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        os.mkfifo(base / "train-0_0", 0o000)
        base.chmod(0o555)
        with as_an_ordinary_user():
            with reader_of(base) as reader, pytest.raises(ds.MissingDataError) as caught:
                reader.open()
            with pytest.raises(ds.MissingDataError, match="There is no folder"):
                reader_of(base / "train-0_0")
        base.chmod(0o700)
    assert "train-0_0 (channel train-0, epoch 0, of rank 3) cannot be read: Permission denied." in str(caught.value)


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root may do everything; so, if this is root, be nobody."""
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_fifo_that_appears_late(base: Path, data_folder: Path, by_id: list[bytes]) -> None:
    feed = ChannelFeed(tuple(str(path) for path in sorted(data_folder.iterdir())), late_s=1.0)
    with reader_of(base) as reader, PipeSimulator(base, {"train-0": feed}, 2):
        for _ in range(2):
            begin = time.monotonic()
            with reader.open(len(by_id)) as one:
                assert time.monotonic() - begin > 0.1
                assert one.read(100) == by_id


def test_no_writer(base: Path) -> None:
    """An empty read before a writer came must not pass for an empty epoch."""
    os.mkfifo(base / "train-0_0")
    with reader_of(base, SHORT_S) as reader, reader.open() as one, pytest.raises(ds.LoaderTimeoutError) as caught:
        one.read(1)
    assert "Nobody opened " in str(caught.value)
    assert "channel train-0, epoch 0, of rank 3" in str(caught.value)


def test_a_writer_that_comes_late(base: Path, stream: bytes, by_id: list[bytes]) -> None:
    os.mkfifo(base / "train-0_0")
    with reader_of(base) as reader, reader.open(len(by_id)) as one:
        waiting = threading.Thread(target=lambda: one.await_data(), daemon=True)
        waiting.start()
        waiting.join(SHORT_S)
        assert waiting.is_alive()
        with Writer(base / "train-0_0", lambda descriptor: write_all(descriptor, stream), make=False):
            waiting.join(TIMEOUT_S)
            assert one.read(100) == by_id


def test_a_writer_that_falls_silent(base: Path, stream: bytes, by_id: list[bytes]) -> None:
    done = threading.Event()

    def write(descriptor: int) -> None:
        write_all(descriptor, stream)
        done.wait(TIMEOUT_S)

    with Writer(base / "train-0_0", write), reader_of(base, SHORT_S) as reader, reader.open() as one:
        assert one.read(len(by_id)) == by_id
        with pytest.raises(ds.LoaderTimeoutError) as caught:
            one.read(1)
        done.set()
    assert f"was silent for 0.3 s after {len(stream):,} bytes" in str(caught.value)


def test_a_writer_that_is_there_and_never_writes(base: Path) -> None:
    done = threading.Event()
    with (
        Writer(base / "train-0_0", lambda _: None if done.wait(TIMEOUT_S) else None),
        reader_of(base, SHORT_S) as reader,
        reader.open() as one,
    ):
        with pytest.raises(
            ds.LoaderTimeoutError, match=r"was silent for 0.3 s after 0 bytes. Its writer is still there"
        ):
            one.read(1)
        done.set()


def test_a_writer_that_writes_nothing_ends_the_epoch(base: Path) -> None:
    assert "delivered 0 records where 5 were expected" in str(refused(base, b"", 5))


def test_a_truncated_stream(base: Path, stream: bytes) -> None:
    error = refused(base, stream[:-3])
    assert isinstance(error, ds.CorruptRecordError)
    assert error.path == str(base / "train-0_0")
    for words in ("channel train-0, epoch 0, of rank 3", f"{len(stream) - 3:,} bytes and 56 records so far", "it ends"):
        assert words in str(error)


def test_garbage(base: Path, stream: bytes) -> None:
    error = refused(base, stream + b"\x89PNG is not a record")
    assert isinstance(error, ds.CorruptRecordError)
    assert error.offset == len(stream)
    assert "of rank 3" in str(error)


def test_a_flipped_bit(base: Path, stream: bytes) -> None:
    damaged = bytearray(stream)
    damaged[len(stream) // 2] ^= 4
    assert isinstance(refused(base, bytes(damaged)), ds.CorruptRecordError)


@pytest.mark.parametrize("expected", [1, 56, 58, 1000])
def test_another_number_of_records(base: Path, stream: bytes, expected: int) -> None:
    error = refused(base, stream, expected)
    assert isinstance(error, ds.ChangedDataError)
    assert f"delivered 57 records{' or more' * (expected < 57)} where {expected:,} were expected" in str(error)


def test_a_record_too_many_after_the_last(base: Path, stream: bytes) -> None:
    with (
        Writer(base / "train-0_0", lambda descriptor: write_all(descriptor, stream)),
        reader_of(base) as reader,
        reader.open(56) as one,
        pytest.raises(ds.ChangedDataError, match="delivered 57 records or more where 56 were expected"),
    ):
        one.read(56)


DYING_WRITER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY)
os.write(descriptor, bytes.fromhex(sys.argv[2]))
print("written", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_is_killed(base: Path, stream: bytes) -> None:
    os.mkfifo(base / "train-0_0")
    half = stream[: len(stream) // 2]
    with (
        subprocess.Popen(
            [sys.executable, "-c", DYING_WRITER, str(base / "train-0_0"), half.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as writer,
        reader_of(base) as reader,
        reader.open(57) as one,
    ):
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.kill()
        with pytest.raises(ds.CorruptRecordError, match=f"{len(half):,} bytes"):
            one.read(57)


def test_closing_early_is_legal_and_moves_on(base: Path, tmp_path: Path) -> None:
    """Far more than pipe and buffer hold, so that the writer is in the middle when its reader leaves."""
    path = ds.write_shards(tmp_path / "data", "x", [bytes(2**20)] * 12, 1)[0]
    feed = ChannelFeed((str(path),))
    with PipeSimulator(base, {"train-0": feed}, 3) as simulator, reader_of(base, buffer_bytes=2**20) as reader:
        with reader.open(12) as one:
            assert len(one.read(1)) == 1
        with reader.open() as one:
            one.await_data()
        with reader.open(12) as one:
            assert len(one.read(12)) == 12
        await_fed(simulator, TIMEOUT_S)
        assert [delivery.closed_early for delivery in simulator.deliveries()["train-0"]] == [True, True, False]


def test_a_closed_pass_ends_a_read_that_waits(base: Path) -> None:
    os.mkfifo(base / "train-0_0")
    errors: list[BaseException] = []

    def read() -> None:
        try:
            one.read(1)
        except ds.PlanError as error:
            errors.append(error)

    with reader_of(base) as reader, reader.open() as one:
        waiting = threading.Thread(target=read, daemon=True)
        waiting.start()
        waiting.join(SHORT_S)
        assert waiting.is_alive()
        one.close()
        waiting.join(TIMEOUT_S)
        assert not waiting.is_alive()
    assert "is closed" in str(errors[0])


def test_misuse(base: Path, tmp_path: Path) -> None:
    (base / "train-0_0").write_bytes(b"")
    reader = reader_of(base)
    with pytest.raises(ds.PlanError, match="is not a FIFO"):
        reader.open()
    (base / "train-0_0").unlink()
    os.mkfifo(base / "train-0_0")
    with reader.open(), pytest.raises(ds.PlanError, match="Epoch 0 of channel train-0 is still open"):
        reader.open()
    reader.close()
    reader.close()
    with pytest.raises(ds.PlanError, match="is closed"):
        reader.open()
    with pytest.raises(ds.MissingDataError, match="There is no folder"):
        reader_of(tmp_path / "nowhere")
