"""A job that cannot be is refused before anything is rendered, and what it says is what the container gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker import Estimator, TrainingSpec
from hvdtrain.launch.sagemaker.hyperparameters import (
    decode,
    encode,
    hyperparameters_of,
    mpi_options,
    reserved,
    worker_options,
)
from hvdtrain.launch.sagemaker.request import secret_names
from hvdtrain.launch.sagemaker.source_archive import source_files

CLOUD: dict[str, Any] = {
    "role": "arn:aws:iam::111122223333:role/train",
    "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
    "output_path": "s3://bucket/jobs",
    "instance_type": "ml.p3.8xlarge",
}


def spec(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"task": "digits", **CLOUD, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None}, "neither a task nor an entry point"),
        ({"entry_point": "train.py"}, "both a task and an entry point"),
        ({"hyperparameters": {"task": "wine"}}, "there is a hyperparameter 'task'"),
        ({"task": None, "entry_point": "../train.py", "source_dir": "src"}, "must be a file in source_dir"),
        ({"task": None, "entry_point": "train"}, "name a .py or .sh file"),
        ({"input_mode": "pipe"}, "did you mean 'Pipe'"),
        ({"region": ""}, "region is ''"),
        ({"role": ""}, "has no role"),
        ({"base_job_name": "my_job"}, "name begins with 'my_job'"),
        ({"base_job_name": "j" * 40}, "up to 39 letters"),
        ({"instance_count": 0}, "instance_count is 0"),
        ({"processes_per_host": 0}, "processes_per_host is 0"),
        ({"max_run_s": 29 * 24 * 3600}, "max_run_s is 2505600"),
        ({"hyperparameters": {"sagemaker_program": "x.py"}}, "are SageMaker's own"),
        ({"hyperparameters": {"--epochs": 3}}, "without leading dashes"),
        ({"hyperparameters": {"lr": float("nan")}}, "'lr' is 'nan', of type float"),
        ({"hyperparameters": {"sizes": [1, 2]}}, "of type list"),
        ({"network_interface_name": "eth0;id"}, "interface is called"),
        ({"role": None}, "has no role"),
        ({"image": None}, "has no image"),
        ({"output_path": None}, "has no output_path"),
        ({"output_path": "/tmp/jobs"}, "machines read from S3"),
        ({"checkpoint_s3_uri": "s3://B/x"}, "The checkpoint_s3_uri is 's3://B/x'. It has 'B'"),
        ({"hyperparameters": {"output_dir": "runs/x"}}, "would be lost with the machine"),
        ({"region": "Virginia"}, "region is 'Virginia'"),
        ({"instance_count": "2"}, "instance_count is '2', of type str. It must be a whole number."),
        ({"instance_count": True}, "instance_count is True, of type bool"),
        ({"processes_per_host": None}, "processes_per_host is None, of type NoneType"),
        ({"max_wait_s": 1.5}, "max_wait_s is 1.5, of type float"),
        ({"use_spot": 1}, "use_spot is 1, of type int"),
        ({"source_dir": "a\0b"}, "has a NUL"),
        ({"hyperparameters": {"note": "a\0b"}}, "has a NUL"),
        ({"role": 5}, "role is 5, of type int"),
        ({"hyperparameters": {5: 1}}, "A hyperparameter is called '5'"),
        ({"hyperparameters": ["a"]}, "It must be a mapping"),
        ({"container_entrypoint": "train"}, "container_entrypoint is 'train', of type str. It must be a tuple"),
        (
            {"subnets": (1,), "security_group_ids": ("sg-1",)},
            "It must be a tuple of texts",
        ),
        ({"tags": {"a": 1}}, "The argument tags is of type dict. It must be a mapping"),
        ({"hyperparameters": {"global-batch-size": 8, "global_batch_size": 8}}, "Both are the same option"),
        ({"image": "foo bar"}, "image is 'foo bar'"),
        ({"output_path": "s3://My_bucket/a"}, "It has 'M' '_'"),
        ({"metric_definitions": {"a": "("}}, "metric a has the regular expression '('"),
        ({"use_spot": True}, "use_spot is given without max_wait_s"),
        ({"use_spot": True, "max_wait_s": 60}, "use_spot is given, and max_wait_s is 60"),
        ({"use_spot": True, "max_wait_s": 90_000}, "use_spot is given without checkpoint_s3_uri"),
        ({"max_wait_s": 10**6}, "max_wait_s is 1000000. It is the time that is waited for spot instances"),
        ({"source_dir": ""}, "The source_dir is empty"),
        ({"environment": {"AWS_SECRET_ACCESS_KEY": "hunter2"}}, "environment has AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec(**changes)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_value_of_the_wrong_type_is_not_shown_where_it_may_be_secret() -> None:
    with pytest.raises(UsageError) as refused:
        spec(environment={"KEY": ["hunter2"]})
    assert "hunter2" not in str(refused.value)


def test_a_script_of_ones_own_may_have_flags_that_differ_in_a_dash() -> None:
    own = {"a-b": 1, "a_b": 2}
    assert spec(task=None, entry_point="train.py", hyperparameters=own).hyperparameters == own


def test_names_that_sound_secret() -> None:
    names = ["HF_TOKEN", "DB_PASSWORD", "API_KEY", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "wandb_api_key"]
    assert secret_names(names) == ["HF_TOKEN", "DB_PASSWORD", "API_KEY", "wandb_api_key"]


def test_a_local_job_needs_nothing_of_aws() -> None:
    assert TrainingSpec(task="digits", output_path="file:///tmp/jobs").is_local
    with pytest.raises(UsageError, match="writes to its disk"):
        TrainingSpec(task="digits", output_path="s3://bucket/jobs")


def test_the_estimator_takes_the_names_of_sagemakers_sdk() -> None:
    estimator = Estimator(
        task="digits",
        **{name: value for name, value in CLOUD.items() if name != "image"},
        image_uri=CLOUD["image"],
        max_run=3600,
        max_wait=7200,
        use_spot_instances=True,
        checkpoint_s3_uri="s3://bucket/checkpoints",
        volume_size=100,
    )
    spot = {"max_run_s": 3600, "max_wait_s": 7200, "use_spot": True, "checkpoint_s3_uri": "s3://bucket/checkpoints"}
    assert estimator.spec == spec(**spot, volume_size_gb=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instance_cont": 2}, "did you mean 'instance_count'"),
        ({"max_run": 5, "max_run_s": 5}, "max_run_s twice"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Estimator(task="digits", **arguments)


VALUES = st.one_of(st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z.-]{0,20}", fullmatch=True), VALUES))
def test_hyperparameters_survive_the_way_into_the_container(values: dict[str, Any]) -> None:
    encoded = encode(values)
    assert all(isinstance(json.loads(text), str | int | float | bool) for text in encoded.values())
    back = decode(encoded)
    assert back == values
    assert {name: type(value) for name, value in back.items()} == {name: type(one) for name, one in values.items()}


def test_what_is_no_json_stands_for_itself_as_in_sagemakers_toolkit() -> None:
    assert decode({"a": "plain", "b": "[1, 2]", "c": "null", "d": "7"}) == {
        "a": "plain",
        "b": "[1, 2]",
        "c": "null",
        "d": 7,
    }


def test_flags_are_spelled_as_the_toolkit_spells_them() -> None:
    values = {"lr": 0.1, "amp": True, "name": "x y", "n": 3, "sagemaker_program": "train.py"}
    assert worker_options(values) == ["--amp", "True", "--lr", "0.1", "-n", "3", "--name", "x y"]


WORDS = st.text().filter(lambda text: not text.startswith("--"))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z.-]{1,20}", fullmatch=True), WORDS))
def test_a_command_line_reaches_the_workers_word_for_word(values: dict[str, str]) -> None:
    if len({name.replace("_", "-") for name in values}) < len(values):
        return
    words = [word for name, value in sorted(values.items()) for word in (f"--{name}", value)]
    assert worker_options(decode(encode(hyperparameters_of(words)))) == words


def test_values_become_numbers_and_switches_true() -> None:
    words = ["--epochs", "3", "--amp", "--lr=0.1", "--seed", "007", "--eps", "1e-3", "--shift", "-1", "--dry-run"]
    expected = {"epochs": 3, "amp": True, "lr": 0.1, "seed": "007", "eps": "1e-3", "shift": -1, "dry-run": True}
    assert hyperparameters_of(words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "3", "4"], "the word '4'"),
        (["-x", "1"], "the word '-x'"),
        (["--", "a"], "the word '--'"),
        (["--data.dir", "a", "--data.dir=b"], "--data.dir is given twice"),
        (["--batch-size", "1", "--batch_size", "2"], "--batch_size is given twice"),
    ],
)
def test_words_that_are_no_hyperparameters(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hyperparameters_of(words)


def test_mpi_starts_the_workers_of_more_than_one() -> None:
    several = spec(instance_count=2, processes_per_host=4, environment={"FOO": "1"}, custom_mpi_options="--verbose")
    own = reserved(several, "job-1", "s3://bucket/x.tar.gz", "us-east-1")
    assert own["sagemaker_mpi_enabled"] is True
    assert own["sagemaker_mpi_num_of_processes_per_host"] == 4
    assert own["sagemaker_mpi_custom_mpi_options"] == "-x FOO --verbose"
    assert not any("mpi" in name for name in reserved(spec(), "job-1", "s3://bucket/x.tar.gz", "us-east-1"))


def test_values_of_variables_are_not_in_the_mpi_options() -> None:
    options = mpi_options(spec(environment={"TOKEN": "hunter2"}, network_interface_name="eth1"))
    assert options == "-x TOKEN -x HOROVOD_GLOO_IFACE -x NCCL_SOCKET_IFNAME"


def test_a_folder_whose_name_no_system_takes_is_not_there() -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        source_files(spec(source_dir="a" * 5000))
