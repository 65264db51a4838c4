"""Which channels a job gets: no two workers may ever read one FIFO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_sharding.pipe.pipe_plan import PipeFile, make_plan
from data_sharding.pipe.pipe_plan_file import load_plan, save_plan
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker import PipePlanInput, TrainingInput, TrainingSpec
from hvdtrain.launch.sagemaker.channel import Channel, Inputs, local_path
from hvdtrain.launch.sagemaker.channels import make_channels
from hvdtrain.launch.sagemaker.pipe_plan import make_plan as make_plan_by_command
from hvdtrain.launch.sagemaker.pipe_plan import read_plan

CLOUD: dict[str, Any] = {
    "role": "arn:aws:iam::111122223333:role/train",
    "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
    "output_path": "s3://bucket/jobs",
    "instance_type": "ml.p3.8xlarge",
}
PREFIX = "s3://bucket/jobs/job/input"
DATA = "s3://bucket/data/"


def spec(**changes: Any) -> TrainingSpec:
    program = {} if "entry_point" in changes else {"task": "digits"}
    return TrainingSpec(**{**program, **CLOUD, **changes})


def local(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"task": "digits", **changes})


def channels(job: TrainingSpec, inputs: Inputs, folder: Path = Path("plans")) -> dict[str, Channel]:
    return {channel.name: channel for channel in make_channels(job, inputs, PREFIX, folder)}


def save(folder: Path, prefix: str = DATA, records: int | None = 5, **job: Any) -> Path:
    files = [PipeFile(f"part-{number}", 10 + number, records) for number in range(40)]
    save_plan(make_plan(files, prefix=prefix, **job), folder)
    return folder


@pytest.mark.parametrize("mode", ["File", "FastFile"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_files_are_one_channel_and_complete_on_each_machine(mode: str, hosts: int) -> None:
    job = spec(input_mode=mode, instance_count=hosts, processes_per_host=4)
    found = channels(job, {"train": DATA, "validation": DATA})
    assert list(found) == ["train", "validation"]
    for channel in found.values():
        assert (channel.source.input_mode, channel.source.distribution) == (mode, "FullyReplicated")
        assert channel.upload is None


def test_a_task_with_data_of_its_own_needs_no_channel() -> None:
    assert channels(spec(), None) == channels(spec(), {}) == {}


def test_one_input_is_the_channel_train() -> None:
    assert list(channels(spec(), DATA)) == ["train"]


@pytest.mark.parametrize(("hosts", "distribution"), [(1, "FullyReplicated"), (2, "ShardedByS3Key")])
@pytest.mark.parametrize("workers", [1, 4])
def test_pipes_are_a_channel_for_each_local_rank(hosts: int, distribution: str, workers: int, tmp_path: Path) -> None:
    job = spec(input_mode="Pipe", instance_count=hosts, processes_per_host=workers)
    found = channels(job, {"train": TrainingInput(DATA, shuffle_seed=7), "validation": DATA}, tmp_path)
    pipes = {name: channel for name, channel in found.items() if channel.source.input_mode == "Pipe"}
    assert list(pipes) == [f"train-{rank}" for rank in range(workers)]
    assert len({channel.source.s3_data for channel in pipes.values()}) == workers
    for name, channel in pipes.items():
        assert channel.source.s3_data == f"{PREFIX}/{name}.manifest"
        assert channel.upload == tmp_path / "train" / f"{name}.manifest"
        assert (channel.source.s3_data_type, channel.source.shuffle_seed) == ("ManifestFile", 7)
        assert channel.source.distribution == distribution
    assert found["validation"].source.input_mode == found["pipe-plan"].source.input_mode == "File"
    assert found["validation"].source.distribution == found["pipe-plan"].source.distribution == "FullyReplicated"


def test_an_own_script_gets_pipes_by_local_rank_and_no_plan() -> None:
    job = spec(entry_point="train.py", input_mode="Pipe", processes_per_host=2)
    found = channels(job, {"train": DATA, "extra": "s3://bucket/extra/{local_rank}/"})
    assert list(found) == ["train-0", "train-1", "extra-0", "extra-1"]
    assert found["extra-1"].source.s3_data == "s3://bucket/extra/1/"


@pytest.mark.parametrize(
    ("hosts", "distribution", "names", "sent"),
    [
        (1, "divided", 4, "FullyReplicated"),
        (2, "divided", 8, "FullyReplicated"),
        (2, "sharded-by-s3-key", 4, "ShardedByS3Key"),
    ],
)
def test_a_plan_names_its_channels(hosts: int, distribution: Any, names: int, sent: str, tmp_path: Path) -> None:
    save(tmp_path, workers_per_host=4, hosts=hosts, distribution=distribution)
    found = channels(
        spec(input_mode="Pipe", instance_count=hosts, processes_per_host=4), {"train": PipePlanInput(str(tmp_path))}
    )
    assert list(found) == [*(f"train-{number}" for number in range(names)), "pipe-plan"]
    for number in range(names):
        channel = found[f"train-{number}"]
        assert channel.source.distribution == sent
        assert channel.upload is not None
        assert json.loads(channel.upload.read_text())[0] == {"prefix": DATA}
    assert found["pipe-plan"].upload == tmp_path / "plan.json"


PIPE = {"input_mode": "Pipe", "processes_per_host": 4}
SCRIPT = {**PIPE, "entry_point": "t.py"}


@pytest.mark.parametrize(
    ("job", "inputs", "message"),
    [
        ({}, {"a b": DATA}, "channel is called 'a b'"),
        ({}, {"train": 3}, "not a data location"),
        ({}, {"train": "/data"}, "machines read from S3"),
        (PIPE, {"train": "data/"}, "machines read from S3"),
        ({}, {"train": "s3://bucket/{local_rank}/"}, "Only Pipe channels"),
        (SCRIPT, {"train-0": DATA, "train-1": DATA}, "give train-0, train-1, train-2, train-3"),
        (PIPE, {f"train-{rank}": DATA for rank in range(4)}, "without a number or {local_rank}, such as train=PLACE"),
        (PIPE, {"train-0": DATA, "train-1": DATA}, "without a number or {local_rank}, such as train=PLACE"),
        ({}, {3: DATA}, "channel is called '3'"),
        ({}, {"train": "s3://My_Bucket/x"}, "It has 'M' '_' 'B'."),
        ({}, {"train": "s3://bucket/a\nb"}, r"It has '\n'."),
        ({}, {"train": "s3://b/"}, "No bucket is called 'b'"),
        ({"hyperparameters": {"data.dir": "/tmp/x"}}, {"train": DATA}, "the channels never read"),
        (PIPE, {"train": "s3://bucket/{local_rank}/"}, "without a plan"),
        (PIPE, {"train": TrainingInput(DATA, s3_data_type="ManifestFile")}, "would all go through one FIFO"),
        (PIPE, {"train": DATA, "val-1": DATA}, "give it a name without a number"),
        ({"instance_count": 2}, {"train": TrainingInput(DATA, "ShardedByS3Key")}, "needs them all on each machine"),
        ({**PIPE, "instance_count": 2}, {"train": TrainingInput(DATA, "FullyReplicated")}, "on the same records"),
    ],
)
def test_what_cannot_be_is_refused(job: dict[str, Any], inputs: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        channels(spec(**job), inputs)
    assert message in str(refused.value)


def test_data_of_channels_may_be_named_by_their_folder() -> None:
    own = {"hyperparameters": {"data.dir": "/opt/ml/input/data/train"}}
    assert list(channels(spec(**own), {"train": DATA, "validation": DATA})) == ["train", "validation"]


@pytest.mark.parametrize(
    ("name", "value"), [("distribution", "Sharded"), ("input_mode", "pipe"), ("record_wrapping", "recordio")]
)
def test_a_choice_that_there_is_not(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="did you mean"):
        TrainingInput(DATA, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("s3_data", 5), ("s3_data", ""), ("shuffle_seed", "7"), ("attribute_names", "a")]
)
def test_a_value_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"The {name} of a TrainingInput is '{value}'"):
        TrainingInput(**{"s3_data": DATA, name: value})


@pytest.mark.parametrize(
    ("plan", "job", "message"),
    [
        ({"workers_per_host": 2}, {}, "is for 1 hosts of 2 workers"),
        ({"prefix": "/data/"}, {}, "SageMaker reads from S3"),
        ({"records": None}, {}, "were not counted"),
        ({}, {"hyperparameters": {"data.pipe-steps": 7}}, "leave out data.pipe-steps"),
    ],
)
def test_a_plan_that_is_not_for_this_job(plan: Any, job: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path, **{"workers_per_host": 4, **plan})
    with pytest.raises(UsageError, match=message):
        channels(spec(**PIPE, **job), {"train": PipePlanInput(str(tmp_path))})


def test_a_plan_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened: No such file"):
        read_plan(str(tmp_path))
    (tmp_path / "plan.json").write_text('{"format": "other"}')
    with pytest.raises(UsageError, match="its format is 'other'"):
        read_plan(str(tmp_path))
    (tmp_path / "plan.json").unlink()
    save(tmp_path, workers_per_host=4)
    (tmp_path / "train-2.manifest").unlink()
    with pytest.raises(UsageError, match=r"no .*train-2\.manifest"):
        channels(spec(**PIPE), {"train": PipePlanInput(str(tmp_path))})


def test_places_of_a_local_job(tmp_path: Path) -> None:
    save(tmp_path / "pipes", prefix=f"{tmp_path}/", workers_per_host=1)
    job = local(input_mode="Pipe")
    found = channels(job, {"train": PipePlanInput(str(tmp_path / "pipes")), "validation": f"file://{tmp_path}"})
    assert {name: channel.upload for name, channel in found.items()} == {
        "train-0": tmp_path / "pipes" / "train-0.manifest",
        "pipe-plan": tmp_path / "pipes" / "plan.json",
        "validation": None,
    }
    assert local_path(found["validation"].source.s3_data) == tmp_path


def test_numbered_files_are_for_the_cloud(tmp_path: Path) -> None:
    assert list(channels(spec(), {"fold-1": DATA})) == ["fold-1"]
    with pytest.raises(UsageError, match="belong to Pipe channels"):
        channels(local(), {"fold-1": str(tmp_path)})


@pytest.mark.parametrize(
    ("place", "message"), [(DATA, "reads files of this machine"), ("nowhere", "no such file or folder")]
)
def test_places_that_a_local_job_cannot_reach(place: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        channels(local(), {"train": place})


@pytest.mark.parametrize(("hosts", "counted"), [(1, True), (2, True), (1, False)])
def test_files_are_dealt_by_the_command_that_does_it(hosts: int, counted: bool, tmp_path: Path) -> None:
    from data_sharding.formats.writers import TFRecordWriter

    for number in range(3):
        with TFRecordWriter(tmp_path / f"{number}.tfrecord") as writer:
            writer.write(b"record")
    steps = {} if counted else {"hyperparameters": {"data.pipe-steps": 2}}
    job = local(input_mode="Pipe", processes_per_host=3, instance_count=hosts, **steps)
    found = channels(job, {"train": str(tmp_path)}, tmp_path / "plans")
    deal = found["train-0"].pending_plan
    assert deal is not None
    make_plan_by_command(job, deal)
    plan = load_plan(deal.folder)
    assert (plan.hosts, plan.workers_per_host, plan.records) == (hosts, 3, 3 if counted else None)
    assert plan.distribution == ("divided" if hosts == 1 else "sharded-by-s3-key")
    for channel in found.values():
        assert channel.upload is not None
        assert channel.upload.is_file()


def test_why_files_could_not_be_dealt_is_said(tmp_path: Path) -> None:
    job = local(input_mode="Pipe", processes_per_host=2)
    deal = channels(job, {"train": str(tmp_path)}, tmp_path / "plans")["train-0"].pending_plan
    assert deal is not None
    with pytest.raises(HvdtrainError, match="could not be distributed") as refused:
        make_plan_by_command(job, deal)
    assert str(tmp_path) in refused.value.conflict
    assert "HINT" not in refused.value.conflict
