"""What a container makes of the files that SageMaker wrote: read, refused, or turned into workers' options."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.container.contract import Container, read_container
from hvdtrain.launch.sagemaker.container.program import worker_command
from hvdtrain.launch.sagemaker.container.variables import assigned_ranks, rendezvous_variables
from hvdtrain.launch.sagemaker.failure_file import await_first_cause, cause_of, write_failure
from hvdtrain.launch.sagemaker.train_entry import export_model, fetch_source

SINGLE = {"current_host": "algo-1", "hosts": ["algo-1"]}


def base_with(
    folder: Path,
    hyperparameters: Any = None,
    channels: Mapping[str, str] | None = None,
    resources: Any = SINGLE,
) -> Path:
    """A base folder with the files of /opt/ml/input/config; None: no such file."""
    (folder / "input" / "config").mkdir(parents=True)
    (folder / "input" / "data").mkdir()
    inputs = None if channels is None else {name: {"TrainingInputMode": mode} for name, mode in channels.items()}
    for name, content in (
        ("hyperparameters", hyperparameters),
        ("inputdataconfig", inputs),
        ("resourceconfig", resources),
    ):
        if content is not None:
            (folder / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
    return folder


def read(folder: Path, **variables: str) -> Container:
    return read_container({"SAGEMAKER_BASE_DIR": str(folder), **variables})


def container_with(folder: Path, hyperparameters: Any = None, channels: Mapping[str, str] | None = None) -> Container:
    container = read(base_with(folder, hyperparameters, channels))
    for name, mode in (channels or {}).items():
        if mode != "Pipe":
            (folder / "input" / "data" / name).mkdir()
    return container


def flags_of(container: Container) -> dict[str, str]:
    words = worker_command(container).argv[4:]
    assert worker_command(container).argv[1:4] == ("-m", "hvdtrain", "train")
    return dict(zip(words[::2], words[1::2], strict=True))


def test_files_as_sagemaker_writes_them(tmp_path: Path) -> None:
    own = {"epochs": "3", "lr": '"0.01"', "amp": "true", "task": "digits", "sagemaker_region": '"us-east-1"'}
    resources = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"}
    container = read(base_with(tmp_path, own, {"train": "FastFile"}, resources))
    assert container.hyperparameters["amp"] is True
    assert (container.hosts, container.hosts.index(container.current_host), container.network_interface) == (
        ("algo-1", "algo-2"),
        1,
        "eth0",
    )
    assert container.channels == {"train": "FastFile"}


def test_the_toolkits_variables_stand_for_files_that_are_not_there(tmp_path: Path) -> None:
    container = read(
        base_with(tmp_path, resources=None),
        SM_HPS='{"epochs":3,"amp":true,"task":"digits"}',
        SM_FRAMEWORK_PARAMS='{"sagemaker_mpi_num_of_processes_per_host":2}',
        SM_RESOURCE_CONFIG=json.dumps(SINGLE),
        SM_INPUT_DATA_CONFIG='{"train":{"TrainingInputMode":"File"}}',
    )
    assert container.hyperparameters["amp"] is True
    assert len(assigned_ranks(container, {})) == 2
    assert container.channels == {"train": "File"}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"resources": None}, "Nothing says which hosts take part"),
        ({"resources": {"hosts": [], "current_host": "a"}}, "It must be a list of host names"),
        ({"resources": {"hosts": ["a", "-oProxyCommand=x"], "current_host": "a"}}, "would be read as an option"),
        ({"resources": {"hosts": ["a"], "current_host": "b"}}, "must be one of them"),
        ({"resources": {"hosts": ["a", "a"], "current_host": "a"}}, "none may be there twice"),
        ({"resources": ["a"]}, "holds no mapping"),
        ({"hyperparameters": {"epochs": 3}}, 'write it as "3"'),
        ({"channels": {"../x": "File"}}, "Channels are named by letters"),
        ({"channels": {"..": "File"}}, "Channels are named by letters"),
        ({"channels": {"train": "Pip"}}, "did you mean 'Pipe'?"),
    ],
)
def test_what_sagemaker_would_not_write_is_refused(files: dict[str, Any], told: str, tmp_path: Path) -> None:
    base = base_with(tmp_path, **files)
    with pytest.raises(UsageError) as caught:
        read(base)
    assert told in str(caught.value)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    base = base_with(tmp_path)
    (base / "input" / "config" / "hyperparameters.json").write_text('{"epochs": "3"')
    with pytest.raises(UsageError, match=r"hyperparameters\.json is not JSON"):
        read(base)


def test_hyperparameters_become_flags_and_the_container_adds_what_is_open(tmp_path: Path) -> None:
    own = {"amp": "true", "task": '"digits"', "data.threads": "2", "sagemaker_program": '"hvdtrain_entry.py"'}
    container = container_with(tmp_path, own, {"train": "File"})
    assert flags_of(container) == {
        "--amp": "True",
        "--task": "digits",
        "--data.threads": "2",
        "--data.dir": str(tmp_path / "input" / "data" / "train"),
        "--output-dir": str(tmp_path / "output" / "data"),
    }


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    container = container_with(tmp_path, {"output_dir": '"/x"', "data.dir": '"/y"'}, {"train": "File"})
    assert flags_of(container) == {"--output_dir": "/x", "--data.dir": "/y"}
    assert worker_command(container).run_folder == Path("/x")


def test_several_file_channels_are_folders_of_one(tmp_path: Path) -> None:
    container = container_with(tmp_path, {}, {"train": "File", "validation": "FastFile"})
    assert flags_of(container)["--data.dir"] == str(tmp_path / "input" / "data")


def test_a_checkpoint_location_is_the_run_folder(tmp_path: Path) -> None:
    container = container_with(tmp_path)
    container.folders.checkpoints.mkdir()
    assert flags_of(container)["--output-dir"] == str(tmp_path / "checkpoints")


def test_pipes_need_the_plan_that_says_who_reads_them(tmp_path: Path) -> None:
    channels = {"train-0": "Pipe", "train-1": "Pipe", "validation": "File", "pipe-plan": "File"}
    container = container_with(tmp_path, {}, channels)
    with pytest.raises(UsageError, match="Nothing says which worker reads which channel"):
        worker_command(container)
    plan = tmp_path / "input" / "data" / "pipe-plan" / "plan.json"
    plan.touch()
    flags = flags_of(container)
    assert (flags["--data.mode"], flags["--data.pipe-plan"]) == ("pipe", str(plan))
    assert flags["--data.pipe-dir"] == str(tmp_path / "input" / "data")
    assert flags["--data.dir"] == str(tmp_path / "input" / "data" / "validation")


@pytest.mark.parametrize("program", ["../own.py", "/etc/passwd", "missing.py"])
def test_a_script_must_be_in_the_source_folder(program: str, tmp_path: Path) -> None:
    container = container_with(tmp_path / "ml", {"sagemaker_program": json.dumps(program)})
    container.folders.code.mkdir()
    (tmp_path / "ml" / "own.py").touch()
    with pytest.raises(UsageError, match="names it as what workers run"):
        worker_command(container)


@pytest.mark.parametrize("value", ['"two"', "0", "true", "2.5"])
def test_a_number_of_workers_that_is_none(value: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="It is the number of workers of each host"):
        assigned_ranks(container_with(tmp_path, {"sagemaker_mpi_num_of_processes_per_host": value}), {})


def test_ranks_go_by_hosts_and_meet_at_the_first(tmp_path: Path) -> None:
    resources = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}
    own = {"sagemaker_mpi_num_of_processes_per_host": "2"}
    container = read(base_with(tmp_path, own, resources=resources))
    assert [(place.rank, place.local_rank) for place in assigned_ranks(container, {})] == [(2, 0), (3, 1)]
    job = {"TRAINING_JOB_NAME": "digits-1"}
    variables = rendezvous_variables(container, assigned_ranks(container, {})[1], job)
    assert variables.items() >= {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "algo-1"}.items()
    first = read(base_with(tmp_path / "1", own, resources={**resources, "current_host": "algo-1"}))
    assert rendezvous_variables(first, assigned_ranks(first, {})[0], job)["MASTER_PORT"] == variables["MASTER_PORT"]
    assert 20_000 <= int(variables["MASTER_PORT"]) < 30_000


def test_under_mpirun_each_process_is_one_worker(tmp_path: Path) -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    variables = dict(zip((f"OMPI_COMM_WORLD_{name}" for name in names), "3412", strict=True))
    (place,) = assigned_ranks(container_with(tmp_path), variables)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 4, 1, 2)
    container = container_with(tmp_path / "2")
    for name in variables.keys() - {"OMPI_COMM_WORLD_RANK"}:  # a guess would give two workers one GPU
        with pytest.raises(UsageError, match=name):
            assigned_ranks(container, {each: value for each, value in variables.items() if each != name})


EXCEPTION = [
    "rank 0 on algo-1 failed:",
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in f',
    "    g()",
    "ValueError: first",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "b.py", line 2, in h',
    "    f()",
    "RuntimeError: second",
    "some library says good-bye",
]


def test_the_exception_comes_before_the_end_of_its_traceback() -> None:
    assert cause_of("all is well\nstill") == ""
    told = cause_of("\n".join(EXCEPTION)).splitlines()
    assert told[0] == "RuntimeError: second"
    assert told[-2:] == ['  File "b.py", line 2, in h', "    f()"]


def test_the_first_cause_stays(tmp_path: Path) -> None:
    assert write_failure(tmp_path / "output", "first")
    assert not write_failure(tmp_path / "output", "second")
    assert (tmp_path / "output" / "failure").read_text() == "first"
    (tmp_path / "file").touch()
    with pytest.raises(HvdtrainError, match="cannot be written"):
        write_failure(tmp_path / "file", "first")


def test_another_rank_is_given_time_to_say_why(tmp_path: Path) -> None:
    await_first_cause(tmp_path, 0.2)
    writer = threading.Timer(0.2, write_failure, (tmp_path, "the cause"))
    writer.start()
    await_first_cause(tmp_path, 60)
    writer.join()
    assert (tmp_path / "failure").exists()


def test_no_result_no_model(tmp_path: Path) -> None:
    assert not export_model(tmp_path, tmp_path / "model")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(HvdtrainError, match="The model cannot be copied"):
        export_model(tmp_path, tmp_path / "model")


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an S3 server of this machine, with an empty bucket of that name."""
    import boto3

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    client.close()
    server.shutdown()
    thread.join(60)
    server.server_close()


def test_the_source_comes_from_s3_where_no_toolkit_fetches_it(bucket: Any, tmp_path: Path) -> None:
    own = {"sagemaker_program": '"own.py"', "sagemaker_submit_directory": '"s3://bucket/job/sourcedir.tar.gz"'}
    container = container_with(tmp_path / "ml", own)
    (tmp_path / "own.py").write_text("print(1)\n")
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "own.py", "own.py")
    bucket.upload_file(str(tmp_path / "source.tar.gz"), "bucket", "job/sourcedir.tar.gz")
    fetch_source(container)
    assert worker_command(container).argv[1] == "own.py"
    assert worker_command(container).folder == tmp_path / "ml" / "code"


def test_a_source_that_leads_out_of_its_folder_is_refused(bucket: Any, tmp_path: Path) -> None:
    own = {"sagemaker_program": '"own.py"', "sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"'}
    container = container_with(tmp_path / "ml", own)
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        archive.add("/dev/null", "../../outside")
    bucket.upload_file(str(tmp_path / "source.tar.gz"), "bucket", "sourcedir.tar.gz")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        fetch_source(container)
    assert not (tmp_path / "outside").exists()


def test_no_archive_and_no_need_of_one(bucket: Any, tmp_path: Path) -> None:
    own = {"sagemaker_program": '"own.py"', "sagemaker_submit_directory": '"s3://bucket/none.tar.gz"'}
    with pytest.raises(HvdtrainError, match=r"Fetching s3://bucket/none\.tar\.gz failed"):
        fetch_source(container_with(tmp_path / "1", own))
    built_in = {**own, "sagemaker_program": '"hvdtrain_entry.py"', "task": "digits"}
    fetch_source(container_with(tmp_path / "2", built_in))
    with pytest.raises(HvdtrainError, match="Fetching"):
        fetch_source(container_with(tmp_path / "3", {**built_in, "config": "run.yaml"}))
    assert bucket is not None
