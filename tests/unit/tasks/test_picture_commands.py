"""The picture tasks from the command line, in one torch process: what trains, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from picture_files import write_mnist
from support.commands import Forker
from support.runs import result_of

SHORT = ["--max-steps", "2", "--progress", "none", "--global-batch-size", "8", "--output-dir", "out"]


@pytest.mark.parametrize("extra", [[], ["--task-args.mixup", "0.2", "--task-args.label-smoothing", "0.1"]])
def test_mnist_trains(forker: Forker, mnist: Path, tmp_path: Path, extra: list[str]) -> None:
    ended = forker.run(["--task", "mnist", "--data.dir", str(mnist), *SHORT, *extra], tmp_path, {})
    assert ended.code == 0, ended
    result = result_of(tmp_path / "out")
    assert set(result["metrics"]) == {"loss", "accuracy", "top5"}


def test_pictures_are_learnt(forker: Forker, mnist: Path, tmp_path: Path) -> None:
    """Brightness tells their classes; chance is a tenth."""
    argv = ["--task", "mnist", "--data.dir", str(mnist), "--epochs", "15", "--global-batch-size", "12"]
    ended = forker.run([*argv, "--progress", "none", "--output-dir", "out"], tmp_path, {})
    assert ended.code == 0, ended
    metrics = result_of(tmp_path / "out")["metrics"]
    assert metrics["accuracy"] >= 0.5
    assert metrics["top5"] >= 0.9


def test_pictures_of_another_size_are_refused(forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_mnist(tmp_path / "data", side=20)
    ended = forker.run(["--task", "mnist", "--data.dir", "data"], tmp_path, {})
    ended.require_refusal("train-images-idx3-ubyte @ byte 16 has 400 pixels.", "28×28")


def test_decoding_in_processes(forker: Forker, cifar10: Path, tmp_path: Path) -> None:
    """Mixup's reader is made again there; the numbers stay."""
    argv = ["--task", "cifar10", "--model", "cnn", "--data.dir", str(cifar10), "--task-args.mixup", "0.2", *SHORT[:-1]]
    for folder, extra in (("threads", []), ("processes", ["--data.processes", "1"])):
        ended = forker.run([*argv, folder, *extra], tmp_path, {})
        assert ended.code == 0, ended
    results = [result_of(tmp_path / folder) for folder in ("threads", "processes")]
    assert results[0]["weights"] == results[1]["weights"]


REFUSED = {
    "unknown model": (["--task", "cifar10", "--model", "resent18"], "There is no model 'resent18' in torch."),
    "no choice": (["--task", "digits", "--model", "cnn"], "has one model of its own. --model cnn would do nothing."),
    "two models": (["--task", "mnist", "--model", "cnn", "--task-args.model", "resnet18"], "are both given."),
    "smoothing": (["--task", "mnist", "--task-args.label-smoothing", "1"], "label_smoothing is 1"),
    "type": (
        ["--task", "mnist", "--task-args.mixup", "much"],
        "The task's argument mixup is 'much'. It must be a number.",
    ),
    "whole": (["--task", "imagenet", "--task-args.side", "3.5"], "side is 3.5. It must be a whole number."),
    "truth": (["--task", "imagenet", "--task-args.classes", "true"], "It must be a whole number or null."),
    "mixup": (["--task", "mnist", "--task-args.mixup", "-1"], "mixup is -1"),
    "no folder": (["--task", "cifar10"], "reads its records from a folder, and none was given."),
    "batch": (["--task", "cifar10", "--global-batch-size", "1"], "The global batch of 1 records leaves 1 to some"),
    "pictures": (["--task", "cifar10", "--model", "alexnet"], "The model alexnet takes no pictures of 32×32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(forker: Forker, cifar10: Path, mnist: Path, tmp_path: Path, case: str) -> None:
    argv, fact = REFUSED[case]
    folder = [] if case in ("no folder", "no choice") else ["--data.dir", str(mnist if "mnist" in argv else cifar10)]
    ended = forker.run([*SHORT, *argv, *folder], tmp_path, {})
    ended.require_refusal(fact)
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_near_name_is_suggested(forker: Forker, cifar10: Path, tmp_path: Path) -> None:
    ended = forker.run(["--task", "cifar10", "--model", "resent50", "--data.dir", str(cifar10)], tmp_path, {})
    ended.require_refusal("did you mean 'resnet50'?")


@pytest.mark.parametrize(("task", "names"), [("cifar10", "cifar-10-python.tar.gz"), ("mnist", "train-images-idx3")])
def test_files_that_are_missing_are_named(forker: Forker, tmp_path: Path, task: str, names: str) -> None:
    (tmp_path / "empty").mkdir()
    ended = forker.run(["--task", task, "--model", "cnn", "--data.dir", "empty"], tmp_path, {})
    ended.require_refusal("does not hold ", names, "unpack ", "--data.download")


def test_a_checkpoint_of_another_model_is_refused(forker: Forker, mnist: Path, tmp_path: Path) -> None:
    argv = ["--task", "mnist", "--data.dir", str(mnist), *SHORT]
    assert forker.run(argv, tmp_path, {}).code == 0
    forker.run([*argv, "--model", "resnet18"], tmp_path, {}).require_refusal("is from a task built with")


NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")  # closed


@pytest.mark.parametrize("task", ["cifar10", "mnist"])
def test_a_download_without_a_network_says_what_to_put_where(forker: Forker, tmp_path: Path, task: str) -> None:
    argv = ["--task", task, "--model", "cnn", "--data.dir", "data/new", "--data.download", "--output-dir", "out"]
    ended = forker.run(argv, tmp_path, {**NOWHERE, "no_proxy": "", "NO_PROXY": ""})
    ended.require_refusal("cannot be downloaded: ", "unpack ", "leave --data.download out")
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_downloaded(forker: Forker, mnist: Path, tmp_path: Path) -> None:
    argv = ["--task", "mnist", "--data.dir", str(mnist), "--data.download", *SHORT]
    assert forker.run(argv, tmp_path, NOWHERE).code == 0


def test_tasks_that_cannot_download_say_so(forker: Forker, tmp_path: Path) -> None:
    ended = forker.run(["--task", "text", "--data.dir", "data", "--data.download"], tmp_path, {})
    ended.require_refusal("The task text cannot download its data.")
    assert not (tmp_path / "data").exists()
