"""Training from pipes under a real launcher: one FIFO a worker, fed by the simulated agent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.pipe_feeding import await_fed
from support.ranks import run_ranks
from support.runs import lines_of, read_json, result_of

from data_sharding import Catalog
from data_sharding.pipe.fifo import PassName, await_fifo
from data_sharding.pipe.pipe_loader import PipeSteps
from data_sharding.pipe.pipe_plan import PipePlan, make_plan
from data_sharding.pipe.pipe_plan_file import describe_files, load_plan, local_paths, save_plan
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator
from hvdtrain.audit.ledger import PIPE_NOTE
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

DEADLINE_S = 240


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits' folder, in a cache that the workers use as well."""
    cache = tmp_path_factory.mktemp("cache")
    train = open_split(DataAccess(None, cache / "data"), "train")
    return Path(train.files[0].path).parent


def plan_for(digits: Path, folder: Path, **job: Any) -> PipePlan:
    prefix, files = describe_files(str(digits / "train-*.tfrecord"), "tfrecord")
    plan = make_plan(files, prefix=prefix, **job)
    save_plan(plan, folder)
    return load_plan(folder)


@contextmanager
def fed(base: Path, plan: PipePlan, epochs: int, **options: Any) -> Iterator[PipeSimulator]:
    feeds = {channel.name: ChannelFeed(local_paths(plan, channel), **options) for channel in plan.channels}
    with PipeSimulator(base, feeds, epochs) as simulator:
        yield simulator


class Job:
    """Starts `hvdtrain` on pipes."""

    def __init__(self, digits: Path, folder: Path) -> None:
        self._digits = digits
        self.base, self.plan, self.out = folder / "fifos", folder / "plan", folder / "out"

    def __call__(self, size: int, *flags: str, launcher: str = "horovodrun") -> Any:
        pipes = ["--data.mode", "pipe", "--data.pipe-dir", str(self.base), "--data.pipe-plan", str(self.plan)]
        command = ["python", "-m", "hvdtrain", *pipes, "--data.timeout", "60", "--output-dir", str(self.out), *flags]
        env = {"HVDTRAIN_CACHE_DIR": str(self._digits.parent.parent)}
        return run_ranks([*command, "--progress", "none", "--report", "never"], size, launcher, DEADLINE_S, env=env)


@pytest.fixture
def job(digits: Path, tmp_path: Path) -> Job:
    return Job(digits, tmp_path)


@pytest.mark.parametrize(("framework", "size", "epochs"), [("torch", 4, 3), ("tensorflow", 2, 2)])
def test_digits_for_some_epochs_from_one_fifo_a_worker(
    framework: str, size: int, epochs: int, job: Job, digits: Path
) -> None:
    plan = plan_for(digits, job.plan, workers_per_host=size)
    records = len(Catalog.index(digits / "train-*.tfrecord"))
    with fed(job.base, plan, epochs, shuffle=7) as simulator:
        finished = job(size, "--framework", framework, "--epochs", str(epochs))
        assert finished.returncode == 0, finished.tail()
        await_fed(simulator, 10)
        for name, deliveries in simulator.deliveries().items():
            assert [each.closed_early for each in deliveries] == [False] * epochs, name
    result = result_of(job.out)
    assert (result["status"], result["world_size"], result["epochs"]) == ("finished", size, epochs)
    assert result["samples_seen"] == epochs * records
    assert result["metrics"]["accuracy"] > 0.9, finished.tail()
    assert result["weights"]["equal_on_all_ranks"]


def test_unequal_channels_and_a_resume(job: Job, digits: Path) -> None:
    """Three workers, four files: one has twice as much. A run stopped in its second epoch goes on from new pipes."""
    plan = plan_for(digits, job.plan, workers_per_host=3)
    records = plan.rank_records()
    assert records is not None
    assert max(records) > 1.9 * min(records)
    steps = PipeSteps(records, 50).steps
    assert steps > -(-sum(records) // 50)
    job.out = job.base.parent / "whole"
    flags = ("--epochs", "2", "--global-batch-size", "50")
    with fed(job.base, plan, 2, shuffle=5):
        whole = job(3, *flags)
        assert whole.returncode == 0, whole.tail()
    expected = result_of(job.out)
    job.out = job.base.parent / "parts"
    with fed(job.base, plan, 2, shuffle=5):
        first = job(3, *flags, "--max-steps", str(steps + 7))
        assert first.returncode == 0, first.tail()
    with fed(job.base, plan, 2, shuffle=5) as simulator:
        second = job(3, *flags)
        assert second.returncode == 0, second.tail()
        await_fed(simulator, 10)
        assert all(len(deliveries) == 2 for deliveries in simulator.deliveries().values())
    assert "passing over 1 epochs, then reading and discarding 7 steps" in second.stdout, second.tail()
    assert result_of(job.out)["samples_seen"] == expected["samples_seen"] == 2 * sum(records)
    assert result_of(job.out)["weights"] == expected["weights"]


def test_steps_agreed_where_nobody_knows_the_counts(job: Job, digits: Path) -> None:
    """Three workers with unequal streams; passes follow each other inside epochs of a length that the user gives."""
    plan = plan_for(digits, job.plan, workers_per_host=3)
    uncounted = read_json(job.plan / "plan.json")
    for channel in uncounted["channels"]:
        channel["records"] = None
        channel["files"] = [[name, size, None] for name, size, _ in channel["files"]]
    (job.plan / "plan.json").write_text(json.dumps(uncounted))
    job.base.mkdir()
    refused = job(3, "--epochs", "2", launcher="mpirun")
    assert refused.returncode == 2, refused.tail()
    assert "HINT: give --data.pipe-steps STEPS" in refused.stderr, refused.tail()
    steps = PipeSteps(plan.rank_records() or (), 48).steps  # of one pass at the task's own batch size
    with fed(job.base, plan, 2) as simulator:
        finished = job(3, "--epochs", "2", "--data.pipe-steps", str(steps), launcher="mpirun")
        assert finished.returncode == 0, finished.tail()
        result = result_of(job.out)
        assert result["steps"] == 2 * steps
        assert result["samples_seen"] == 2 * sum(plan.rank_records() or ())
        assert result["metrics"]["accuracy"] > 0.9, finished.tail()
        assert [len(each) for each in simulator.deliveries().values()] == [2, 2, 2]


def test_two_workers_with_one_channel_are_refused_before_anything_is_read(job: Job, digits: Path) -> None:
    """A plan in which two channels are one FIFO under two names."""
    plan = plan_for(digits, job.plan, workers_per_host=2)
    job.base.mkdir()
    other = job.base / "train-1_0"
    only = {"train-0": ChannelFeed(local_paths(plan, plan.channels[0]))}
    with PipeSimulator(job.base, only, 1) as simulator:
        await_fifo(PassName(job.base, "train-0", 0, 0), 10)
        other.hardlink_to(job.base / "train-0_0")
        finished = job(2, launcher="mpirun")
        assert simulator.deliveries() == {"train-0": []}
    other.unlink()
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("One FIFO would be opened by rank 0") == 1, finished.tail()
    assert re.search(r"rank 1 \(local rank 1 on \S+, channel train-1\)", finished.stderr), finished.tail()


@pytest.mark.parametrize("how", ["inside a record", "between two records"])
def test_a_channel_that_ends_before_all_has_come_ends_the_job(how: str, job: Job, digits: Path) -> None:
    """Torn, or sound as far as it goes and too short."""
    plan = plan_for(digits, job.plan, workers_per_host=2)
    feeds = {channel.name: ChannelFeed(local_paths(plan, channel)) for channel in plan.channels}
    files = feeds["train-1"].files
    whole = Path(files[0]).stat().st_size
    records = len(Catalog.index(files[0]))
    end = whole if how == "between two records" else whole - 3
    feeds["train-1"] = ChannelFeed(files, truncate=end)
    with PipeSimulator(job.base, feeds, 1):
        finished = job(2, launcher="mpirun")
    assert finished.returncode == 1, finished.tail()
    assert "rank 1 on " in finished.stderr
    there = records if end == whole else records - 1
    so_far = f"(channel train-1, epoch 0, of rank 1; {end:,} bytes and {there} records so far)"
    assert so_far in finished.stderr, finished.tail()
    total = plan.channels[1].records
    words = "cannot be read on" if end < whole else f"delivered {records} records where {total} were expected"
    assert f"{so_far} {words}" in finished.stderr, finished.tail()


def test_no_training_file_is_needed_on_the_host(job: Job, digits: Path, tmp_path: Path) -> None:
    """The data folder holds what is validated on; all that is trained on comes through the pipes."""
    plan = plan_for(digits, job.plan, workers_per_host=2)
    folder = tmp_path / "validation"
    folder.mkdir()
    for path in digits.glob("validation-*"):
        shutil.copy(path, folder)
    with fed(job.base, plan, 1):
        finished = job(2, "--epochs", "1", "--warmup-epochs", "0", "--data.dir", str(folder), launcher="mpirun")
    assert finished.returncode == 0, finished.tail()
    assert result_of(job.out)["samples_seen"] == sum(plan.rank_records() or ())
    (validated,) = [line for line in lines_of(job.out) if line.get("split") == "validation"]
    assert validated["samples"] == len(Catalog.index(folder / "validation-*.tfrecord"))
    assert "trained from pipes" in (job.out / "audit" / PIPE_NOTE).read_text()


def test_a_plan_for_another_job(job: Job, digits: Path) -> None:
    plan_for(digits, job.plan, workers_per_host=4)
    finished = job(2, launcher="mpirun")
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("The pipe plan is for 1 hosts of 4 workers, and this job has 2 workers") == 1
