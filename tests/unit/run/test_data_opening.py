"""A task's data is opened in a thread while Horovod starts, except where that could do harm."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Forker
from support.digits_runs import Command
from support.range_server import serving

import hvdtrain
from data_sharding.errors import ShardingError
from hvdtrain.config.parser import parse_train_config
from hvdtrain.data.file_cache import file_cache
from hvdtrain.errors import UsageError
from hvdtrain.run.data_opening import DataOpening, may_begin_early
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.torch import TorchDigits


class Told(hvdtrain.Task):
    """Says in which thread it was asked for its data."""

    framework = "torch"
    opens_early = True
    threads: list[str]

    def open_data(self, data: DataAccess) -> hvdtrain.Splits:
        self.threads.append(threading.current_thread().name)
        return hvdtrain.Splits(train=data.catalog("records.npy"))

    def decode(self, records: Any) -> Any:
        raise NotImplementedError

    build_model = measure = build_optimizer = decode


@pytest.fixture
def task(tmp_path: Path) -> type[Told]:
    np.save(tmp_path / "records.npy", np.zeros((4, 1), np.uint8))
    return type("Told", (Told,), {"threads": []})


def test_it_is_opened_once_and_before_it_is_asked_for(task: type[Told], tmp_path: Path) -> None:
    opening = DataOpening(parse_train_config(["--data.dir", str(tmp_path)]), task)
    opening.begin()
    opened, data = opening.result()
    assert data.train is not None
    assert len(data.train) == 4
    assert opening.result()[0] is opened
    assert task.threads == ["background"]


def test_what_is_not_begun_is_opened_when_it_is_asked_for(task: type[Told], tmp_path: Path) -> None:
    DataOpening(parse_train_config(["--data.dir", str(tmp_path)]), task).result()
    assert task.threads == ["MainThread"]


@pytest.mark.parametrize("options", [["--data.dir", "s3://bucket/data"], ["--data.dir", "x", "--data.download"]])
def test_storage_and_downloads_wait(options: list[str], task: type[Told]) -> None:
    """Their connections could not be told from Horovod's, and nothing is downloaded for a run that is then refused."""
    opening = DataOpening(parse_train_config(options), task)
    opening.begin()
    assert opening._begun is None


def test_a_task_that_does_not_say_so_waits(task: type[Told]) -> None:
    def own(data: DataAccess) -> hvdtrain.Splits:
        raise NotImplementedError

    config = parse_train_config([])
    assert may_begin_early(config, task)
    assert may_begin_early(config, type("Same", (task,), {}))
    assert may_begin_early(config, TorchDigits)
    assert not may_begin_early(config, type("Silent", (task,), {"open_data": own}))
    assert not may_begin_early(config, type("Silent", (task,), {"__init__": lambda _self: None}))
    assert not may_begin_early(config, type("Says", (task,), {"opens_early": False}))
    assert may_begin_early(config, type("Says", (task,), {"open_data": own, "opens_early": True}))


def test_what_it_raises_comes_where_it_is_asked_for(task: type[Told], tmp_path: Path) -> None:
    opening = DataOpening(parse_train_config(["--data.dir", str(tmp_path / "nowhere")]), task)
    opening.begin()
    with pytest.raises(UsageError, match="There is no folder"):
        opening.result()
    opening.settle()


def test_nothing_is_waited_for_that_was_not_begun(task: type[Told], tmp_path: Path) -> None:
    opening = DataOpening(parse_train_config(["--data.dir", str(tmp_path / "nowhere")]), task)
    with pytest.raises(UsageError, match="There is no folder"):
        opening.result()
    begin = time.monotonic()
    opening.settle()
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("what", ["train", "validation", "all"])
def test_what_is_no_catalog_is_refused(what: str, task: type[Told], tmp_path: Path) -> None:
    def open_data(self: Told, data: DataAccess) -> Any:  # noqa: ARG001
        records = data.catalog("records.npy")
        dataset: Any = [1, 2, 3]  # such as a torch Dataset
        match what:
            case "train":
                return hvdtrain.Splits(dataset)
            case "validation":
                return hvdtrain.Splits(records, dataset)
            case _:
                return records

    other = type("Other", (task,), {"open_data": open_data})
    with pytest.raises(UsageError, match="is an object of type list|returned an object of type Catalog") as caught:
        DataOpening(parse_train_config(["--data.dir", str(tmp_path)]), other).result()
    assert "data.catalog" in caught.value.hint
    assert what in caught.value.fact or what == "all"


def test_validation_records_of_pipe_mode_are_a_catalog(task: type[Told], tmp_path: Path) -> None:
    other = type("Other", (task,), {"open_validation": lambda self, data: [1, 2, 3]})  # noqa: ARG005
    with pytest.raises(UsageError, match=r"Other\.open_validation returned is an object of type list"):
        DataOpening(parse_train_config(["--data.dir", str(tmp_path), "--data.mode", "pipe"]), other).result()


def test_a_task_may_name_several_sets_and_the_option_replaces_them(task: type[Told], tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.zeros((3, 1), np.uint8))

    def open_data(self: Told, data: DataAccess) -> hvdtrain.Splits:
        records, other = data.catalog("records.npy"), data.catalog("other.npy")
        return hvdtrain.Splits(records, validation={self.name: records, "other": other})  # type: ignore[attr-defined]

    def sets(name: str, *options: str) -> dict[str, int]:
        kind = type("Several", (task,), {"open_data": open_data, "name": name})
        _, data = DataOpening(parse_train_config(["--data.dir", str(tmp_path), *options]), kind).result()
        return {name: len(catalog) for name, catalog in data.validation.items()}

    assert sets("same") == {"same": 4, "other": 3}
    assert sets("same", "--data.validation", "other.npy") == {"": 3}
    assert sets("same", "--data.validation", "a=other.npy", "--data.validation", "b=*.npy") == {"a": 3, "b": 7}
    with pytest.raises(UsageError, match="The argument validation of Splits names a set of records 'a/b'"):
        sets("a/b")
    with pytest.raises(ShardingError, match=r"No file matches .*none"):
        sets("same", "--data.validation", "a=none-*")


def test_a_set_that_a_task_opens_is_a_catalog(task: type[Told], tmp_path: Path) -> None:
    other = type("Other", (task,), {"open_set": lambda self, data, pattern: [pattern]})  # noqa: ARG005
    with pytest.raises(UsageError, match=r"Other\.open_set returned is an object of type list"):
        DataOpening(parse_train_config(["--data.dir", str(tmp_path), "--data.validation", "x"]), other).result()


def test_names_are_compared_with_an_item_before_the_training(tmp_path: Path) -> None:
    def open_data(_: Told, data: DataAccess) -> hvdtrain.Splits:
        return hvdtrain.Splits(data.dataset([(1, 2, 3)], names=("x", "y")))

    other = type("Other", (Told,), {"open_data": open_data, "threads": []})
    config = parse_train_config(["--data.dir", str(tmp_path)])
    assert DataOpening(config, other).result()
    with pytest.raises(ShardingError, match="An item has 3 parts"):
        DataOpening(config, type("Without", (other,), {"decode": hvdtrain.Task.decode})).result()


def test_remote_files_are_kept_in_the_cache_that_is_named(task: type[Told], tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        url = f"{server.url}/records.npy"
        task.open_data = lambda _, data: hvdtrain.Splits(train=data.catalog(url))  # type: ignore[method-assign]
        options = ["--data.cache-dir", str(tmp_path / "cache"), "--data.cache-limit", "1M"]
        config = parse_train_config(options)
        _, data = DataOpening(config, task).result()
        assert data.train is not None
        cache = file_cache(config.data)
        assert cache is not None
        cache.fetch_all(data.train.files)
        copy = cache.find(data.train.files[0])
        assert copy is not None
        assert Path(copy.path).read_bytes() == (tmp_path / "records.npy").read_bytes()


def test_a_cache_that_cannot_be_used_is_refused_before_anything_is_read(task: type[Told], tmp_path: Path) -> None:
    config = parse_train_config(["--data.dir", str(tmp_path), "--data.cache-dir", str(tmp_path)])
    with pytest.raises(ShardingError, match=r"holds records.npy, and is not a cache.*\nHINT: name a new folder"):
        DataOpening(config, task).result()
    assert task.threads == []


@pytest.mark.parametrize("size", ["much", "-1G", "1.5G"])
def test_limits_of_the_cache_are_amounts(size: str) -> None:
    with pytest.raises(UsageError, match=rf"--data.cache-limit is {size}.*\nHINT: half a gibibyte is --data"):
        parse_train_config(["--data.cache-dir", "/scratch", f"--data.cache-limit={size}"])


@pytest.mark.parametrize("command", [["evaluate"], ["predict", "--output", "rows.npz"]])
def test_a_folder_of_the_training_that_is_not_here_is_not_said_to_be_given(
    command: list[str], hvdtrain: Command, forker: Forker, digits: Path
) -> None:
    """As from another working directory; a folder that is given now is said to be given."""
    elsewhere = digits.parent / "elsewhere"
    elsewhere.mkdir()
    (trained,) = hvdtrain(["--data.dir", digits.name, "--output-dir", "out"])
    assert trained.code == 0, trained
    argv = [command[0], "../out", *command[1:]]
    ended = forker.run(argv, elsewhere)
    here = f"There is no folder {elsewhere / digits.name}."
    ended.require_refusal(here, "The run was trained with --data.dir 'digits', a relative path.", "as --data.dir DIR.")
    assert "It was given" not in ended.stderr
    given = forker.run([*argv, "--data.dir", digits.name], elsewhere)
    given.require_refusal(here, "It was given as --data.dir.")
