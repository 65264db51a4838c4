"""Helper processes make the batches that threads would; whatever happens to one is said, and none is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.decode_worker import Arena

# The helpers are given this process's import path.
_SUPPORT = str(Path(__file__).parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

import importable_decoders as decoders  # noqa: E402

WAIT_S = 60.0


def helper_processes() -> list[int]:
    """Children of this process that are helpers, zombies too."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # one that has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
            if int(fields[1]) == os.getpid() and (b"decode_worker" in command or fields[0] == "Z"):
                found.append(int(folder.name))
    return found


def wait_for_end(pid: int) -> None:
    """Until a process that is no child of ours has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        assert poller.poll(WAIT_S * 1000), f"process {pid} is still there"
    finally:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()  # what earlier tests left to be collected is not counted
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("data_sharding-"):
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert helper_processes() == []
    end = time.monotonic() + WAIT_S
    while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < end:
        time.sleep(0.01)  # a thread that has ended its process may be about to close what it read from
        gc.collect()  # the error that ended the thread refers to the thread's frames, and these to the error
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
def reader(catalog: ds.Catalog) -> Iterator[ds.RecordReader]:
    with ds.RecordReader(catalog) as reader:
        # Opened before descriptors are counted.
        reader.read(np.arange(len(catalog)))
        yield reader


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A descriptor from which to read the ids of processes that hang."""
    pipe = tmp_path / "hanging"
    os.mkfifo(pipe)
    monkeypatch.setenv("HANGING", str(pipe))
    descriptor = os.open(pipe, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def pid_from(descriptor: int) -> int:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(WAIT_S * 1000)
    return int(os.read(descriptor, 100).split()[0])


def plan_for(catalog: ds.Catalog, **changes: Any) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, **{"global_batch": 8, "seed": 5, "epoch": 1, **changes})


def assert_equal(ours: ds.LoadedBatch, theirs: ds.LoadedBatch) -> None:
    assert (ours.step, ours.global_weight) == (theirs.step, theirs.global_weight)
    for name in ("ids", "weights", "damaged"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype
    assert ours.features.keys() == theirs.features.keys()
    for name, array in ours.features.items():
        assert array.dtype == theirs.features[name].dtype
        assert array.flags.writeable
        assert np.array_equal(array, theirs.features[name])


@pytest.mark.parametrize(("processes", "size", "start"), [(1, 1, 0), (2, 3, 2), (3, 1, 8)])
def test_batches_equal_those_of_threads(reader: ds.RecordReader, processes: int, size: int, start: int) -> None:
    plan = plan_for(reader.catalog)
    for rank in range(size):
        arguments: dict[str, Any] = {"rank": rank, "size": size, "start_step": start, "augment": True}
        with ds.ShardLoader(plan, reader, decoders.contents, **arguments) as threads:
            expected = list(threads)
        with ds.ShardLoader(plan, reader, decoders.contents, processes=processes, **arguments) as loader:
            made = list(loader)
        assert len(made) == plan.steps - start
        for ours, theirs in zip(made, expected, strict=True):
            assert_equal(ours, theirs)


def test_batches_are_made_elsewhere_and_by_all_processes(reader: ds.RecordReader) -> None:
    plan = plan_for(reader.catalog, global_batch=1)
    with ds.ShardLoader(plan, reader, decoders.process, rank=0, size=1, processes=2) as loader:
        pids = {int(batch.features["pid"][0]) for batch in loader}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_one_set_of_processes_serves_many_epochs(reader: ds.RecordReader) -> None:
    pids = set()
    with DecodeProcesses(reader, decoders.process, 1) as helpers:
        for epoch in range(3):
            with ds.ShardLoader(plan_for(reader.catalog, epoch=epoch), reader, helpers, rank=0, size=1) as loader:
                pids |= {int(batch.features["pid"][0]) for batch in loader}
        assert helper_processes() == list(pids)
    assert len(pids) == 1


def test_a_method_of_an_object_can_decode(reader: ds.RecordReader) -> None:
    with DecodeProcesses(reader, decoders.Decoder(3).decode, 1) as helpers:
        made = helpers(np.array([4, 2]), None).features["length"]
    assert made.tolist() == [3 * len(payload) for payload in reader.read(np.array([4, 2]))]


def test_results_may_be_large_and_grow_and_stay_as_they_are(reader: ds.RecordReader, by_id: list[bytes]) -> None:
    short, longer = sorted((length, record) for record, length in enumerate(map(len, by_id)) if length)[:8:7]
    with DecodeProcesses(reader, decoders.megabytes, 1) as helpers:
        kept = [helpers(np.array([record]), None).features["x"] for _, record in (short, longer, short)]
    for array, (length, _) in zip(kept, (short, longer, short), strict=True):
        assert array.shape == (1, length, 1 << 20)
        assert (array == length).all()


def test_damaged_records_are_masked_as_in_threads(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    path = sorted(folder.iterdir())[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    catalog = ds.Catalog.index(folder)
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        plan, made = plan_for(catalog), []
        for processes in (0, 1):
            with ds.ShardLoader(plan, reader, decoders.contents, rank=0, size=1, processes=processes) as loader:
                made.append(list(loader))
    assert sum(len(batch.damaged) for batch in made[1]) == 1
    for ours, theirs in zip(*made, strict=True):
        assert_equal(ours, theirs)
    with ds.RecordReader(catalog) as reader, DecodeProcesses(reader, decoders.contents, 1) as helpers:
        with pytest.raises(ds.CorruptRecordError) as caught:
            helpers(np.arange(len(catalog)), None)
        with pytest.raises(ds.CorruptRecordError) as expected:
            reader.read(np.arange(len(catalog)))
    assert str(caught.value) == str(expected.value)
    assert (caught.value.path, caught.value.offset) == (expected.value.path, expected.value.offset)


@pytest.mark.parametrize(
    ("decode", "kind", "message"),
    [
        (decoders.fail, ArithmeticError, "cannot decode"),
        (decoders.fail_oddly, RuntimeError, "OddError: this and that"),
        (decoders.leave, SystemExit, "8"),
        (decoders.stop_iteration, RuntimeError, "raised StopIteration"),
        (decoders.too_few_rows, ds.PlanError, r"shape \(7,\) for 'x' from 8 records"),
        (decoders.unsendable, AttributeError, "lambda"),
    ],
)
def test_an_exception_arrives_at_its_step_with_its_traceback(
    reader: ds.RecordReader, decode: Any, kind: type[BaseException], message: str
) -> None:
    loader = ds.ShardLoader(plan_for(reader.catalog), reader, decode, rank=0, size=1, processes=1)
    with pytest.raises(kind, match=message) as caught, loader:
        next(loader)
    notes = "\n".join(caught.value.__notes__)
    assert "in a decode process:" in notes
    if kind is not SystemExit:
        assert "while loading step 0 of epoch 1 for rank 0 of 1" in notes
    if decode is decoders.fail:
        assert 'importable_decoders.py", line' in notes


def test_threads_too_take_stop_iteration_for_an_error(reader: ds.RecordReader) -> None:
    with (
        pytest.raises(RuntimeError, match="raised StopIteration"),
        ds.ShardLoader(plan_for(reader.catalog), reader, decoders.stop_iteration, rank=0, size=1) as loader,
    ):
        list(loader)


@pytest.mark.parametrize(
    ("decode", "code"), [(decoders.kill_itself, r"-9 \(SIGKILL\)"), (decoders.exit_at_once, "8 while")]
)
def test_a_process_that_dies_is_named_with_its_exit_code(reader: ds.RecordReader, decode: Any, code: str) -> None:
    with (
        pytest.raises(ds.ShardingError, match=f"ended with exit code {code}"),
        ds.ShardLoader(
            plan_for(reader.catalog), reader, decode, rank=0, size=1, processes=2, timeout_s=WAIT_S
        ) as loader,
    ):
        next(loader)


def test_the_death_is_noticed_even_if_a_child_of_the_process_lives_on(reader: ds.RecordReader, hanging: int) -> None:
    with DecodeProcesses(reader, decoders.die_and_leave_a_child, 1) as helpers:
        try:
            with pytest.raises(ds.ShardingError, match="ended with exit code 3 while"):
                helpers(np.arange(2), None)
        finally:
            os.kill(pid_from(hanging), signal.SIGKILL)


def test_a_process_that_was_killed_between_batches_is_replaced_after_the_error(reader: ds.RecordReader) -> None:
    ids = np.arange(3)
    with DecodeProcesses(reader, decoders.process, 1) as helpers:
        pid = int(helpers(ids, None).features["pid"][0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ds.ShardingError, match=rf"Decode process {pid} ended with exit code -9 \(SIGKILL\)"):
            helpers(ids, None)
        assert int(helpers(ids, None).features["pid"][0]) != pid


def test_a_process_that_hangs_meets_the_deadline_and_is_ended(reader: ds.RecordReader, hanging: int) -> None:
    loader = ds.ShardLoader(plan_for(reader.catalog), reader, decoders.hang, rank=0, size=1, processes=1, timeout_s=3.0)
    with pytest.raises(ds.LoaderTimeoutError, match="Batch 0 was not ready after 3 seconds"), loader:
        next(loader)
    wait_for_end(pid_from(hanging))


@pytest.mark.parametrize("stopped", [False, True])
def test_closing_ends_processes_in_the_middle_of_a_batch(reader: ds.RecordReader, hanging: int, stopped: bool) -> None:
    loader = ds.ShardLoader(plan_for(reader.catalog), reader, decoders.hang, rank=0, size=1, processes=2)
    loader.__enter__()
    pids = [pid_from(hanging)]
    if stopped:
        os.kill(pids[0], signal.SIGSTOP)
    begin = time.monotonic()
    loader.close()
    loader.close()
    assert time.monotonic() - begin < WAIT_S / 2
    assert helper_processes() == []
    with pytest.raises(ds.PlanError, match="closed"):
        next(loader)


def test_a_dropped_loader_ends_its_processes(reader: ds.RecordReader) -> None:
    loader = ds.ShardLoader(plan_for(reader.catalog), reader, decoders.process, rank=0, size=1, processes=2)
    pid = int(next(loader).features["pid"][0])
    assert pid in helper_processes()
    del loader
    gc.collect()
    wait_for_end(pid)


def test_an_unused_loader_starts_no_process(reader: ds.RecordReader) -> None:
    ds.ShardLoader(plan_for(reader.catalog), reader, decoders.process, rank=0, size=1, processes=2).close()
    with DecodeProcesses(reader, decoders.process, 2):
        assert helper_processes() == []


def test_closed_processes_refuse_work(reader: ds.RecordReader) -> None:
    helpers = DecodeProcesses(reader, decoders.process, 1)
    helpers.close()
    helpers.close()
    with pytest.raises(ds.PlanError, match="The decode processes are closed"):
        helpers(np.arange(2), None)


def test_helpers_are_no_ranks_and_compute_with_one_thread(
    reader: ds.RecordReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PRTE_X", "HOROVOD_RANK", "MPI_LOCALRANKID"]
    for name in [*ranks, "USERS_OWN"]:
        monkeypatch.setenv(name, "1")
    with DecodeProcesses(reader, decoders.environment, 1) as helpers:
        features = helpers(np.arange(1), None).features
    names = features["names"][0].split("\n")
    assert "USERS_OWN" in names
    assert not set(ranks) & set(names)
    assert features["threads"][0] == "1"


def from_this_script(records: ds.RecordBatch) -> dict[str, Any]:
    return decoders.contents(records)


def test_what_a_script_defines_travels_by_value(reader: ds.RecordReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def local(records: ds.RecordBatch) -> dict[str, Any]:
        return decoders.contents(records)

    main = types.FunctionType(from_this_script.__code__, {"decoders": decoders}, "from_this_script")
    main.__module__, main.__qualname__ = "__main__", "from_this_script"
    monkeypatch.setattr(sys.modules["__main__"], "from_this_script", main, raising=False)
    expected = decoders.contents(reader.load(np.arange(2)))
    for decode in (local, lambda records: decoders.contents(records), main):
        with DecodeProcesses(reader, decode, 1) as helpers:
            found = helpers(np.arange(2), None).features
        assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in expected.items()}


def test_what_cannot_be_copied_is_refused_at_once(reader: ds.RecordReader, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    for missing in (False, True):  # without cloudpickle, what only the script defines is refused, too
        if missing:
            monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(ds.PlanError, match="lambda" if missing else "lock") as caught:
            ds.ShardLoader(plan_for(reader.catalog), reader, lambda _: {"locked": lock}, rank=0, size=1, processes=1)
        assert "top level of a module" in caught.value.hint


def test_a_module_that_processes_do_not_find_is_named(reader: ds.RecordReader, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = types.ModuleType("ghost_module")
    exec("def decode(records): return {}", vars(ghost))
    monkeypatch.setitem(sys.modules, "ghost_module", ghost)
    with (
        DecodeProcesses(reader, ghost.decode, 1) as helpers,
        pytest.raises(ds.PlanError, match="cannot load the decode function: ModuleNotFoundError.*ghost_module"),
    ):
        helpers(np.arange(2), None)


@pytest.mark.parametrize(("processes", "message"), [(-1, "processes is -1"), (1, "only one set")])
def test_impossible_numbers_are_refused(reader: ds.RecordReader, processes: int, message: str) -> None:
    with DecodeProcesses(reader, decoders.process, 1) as helpers:
        decode: Any = helpers if processes > 0 else decoders.process
        with pytest.raises(ds.PlanError, match=message):
            ds.ShardLoader(plan_for(reader.catalog), reader, decode, rank=0, size=1, processes=processes)


def test_processes_for_other_data_are_refused(reader: ds.RecordReader, tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "other", [b"1", b"2"], 1)
    with (
        ds.RecordReader(ds.Catalog.index(tmp_path)) as other,
        DecodeProcesses(other, decoders.process, 1) as helpers,
        pytest.raises(ds.PlanError, match="other data"),
    ):
        ds.ShardLoader(plan_for(reader.catalog), reader, helpers, rank=0, size=1)


SCRIPT = """
import os, sys
sys.path.insert(0, {support!r})
import data_sharding as ds, importable_decoders as decoders
print("script runs", flush=True)
catalog = ds.Catalog.index({folder!r})
plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=0, epoch=0)
reader = ds.RecordReader(catalog)
loader = ds.ShardLoader(plan, reader, decoders.{decode}, rank=0, size=1, processes=2)
for batch in loader:
    print("batch", batch.step, flush=True)
"""


def test_a_script_without_a_main_guard_runs_once_and_may_forget_to_close(data_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(support=_SUPPORT, folder=str(data_folder), decode="contents"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.split("\n")[:-1] == ["script runs", *(f"batch {step}" for step in range(8))]
    assert done.stderr == ""


FORKING = """
loader.__enter__()
sys.stdin.readline()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
next(loader)
"""


@pytest.mark.parametrize("forked", [False, True])
def test_processes_end_when_their_parent_is_killed_even_while_they_hang(
    data_folder: Path, hanging: int, forked: bool
) -> None:
    script = SCRIPT.format(support=_SUPPORT, folder=str(data_folder), decode="hang")
    if forked:  # a child that outlives the parent holds the sockets open
        script = script.partition("for batch")[0] + FORKING
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "script runs\n"
        pid = pid_from(hanging)
        if forked:
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "forked\n"
        parent.kill()
        wait_for_end(pid)


def test_an_arena_gives_back_what_was_put_and_copies_it() -> None:
    descriptor = os.memfd_create("test")
    try:
        writer, reader = Arena(descriptor), Arena(descriptor)
        for parts in ([b"abc", b"", b"defgh"], [], [bytes(100_000)], [b"x"]):
            writer.put([memoryview(part) for part in parts])
            got = reader.get([len(part) for part in parts])
            writer.put([memoryview(b"overwritten")])
            assert [bytes(part) for part in got] == parts
    finally:
        os.close(descriptor)
