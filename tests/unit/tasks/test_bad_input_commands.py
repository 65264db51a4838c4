"""Bad input from the command line: refused before anything is written, or a run that ends with its record named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from picture_files import (
    photo,
    write_cifar10,
    write_mnist,
    write_photo_folders,
    write_photo_tars,
    write_photo_tfrecords,
)
from support.commands import Forker

from data_sharding.formats import TarWriter

REFUSED = {
    "optimizer": (["--optimizer", "sdg"], "--optimizer is given as 'sdg'. It must be sgd, adam, adamw, lars, lamb"),
    "precision": (["--precision", "fp8"], "--precision is given as 'fp8'. It must be fp32, tf32, bf16, fp16."),
    "compression": (["--compression", "zip"], "--compression is given as 'zip'."),
    "compression and op": (
        ["--compression", "fp16", "--reduce-op", "adasum"],
        "--compression fp16 is given with --reduce-op adasum.",
    ),
    "width of digits": (["--task", "digits", "--task-args.width", "0"], "The task's argument width is 0."),
    "names of classes": (
        ["--task", "imagenet", "--task-args.class-names", "cat"],
        "The task's argument class_names is 'cat'. It must be a list of names.",
    ),
    "accumulation": (["--accumulate-steps", "0"], "--accumulate-steps is 0. It must be 1 or more."),
    "accumulation of nothing": (
        ["--global-batch-size", "4", "--accumulate-steps", "5"],
        "The global batch of 4 records leaves 0 to some of the 1 workers × 5 micro batches.",
    ),
    "BatchNorm": (
        ["--model", "resnet18", "--global-batch-size", "4", "--accumulate-steps", "4"],
        "BatchNorm takes its statistics from the records of one worker's micro batch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_write_nothing(forker: Forker, mnist: Path, tmp_path: Path, case: str) -> None:
    argv, fact = REFUSED[case]
    ended = forker.run(["--task", "mnist", "--data.dir", str(mnist), "--output-dir", "out", *argv], tmp_path, {})
    ended.require_refusal(fact)
    assert list(tmp_path.iterdir()) == []


def test_a_precision_that_the_device_lacks_is_refused_before_training(
    forker: Forker, mnist: Path, tmp_path: Path
) -> None:
    argv = ["--task", "mnist", "--data.dir", str(mnist), "--output-dir", "out", "--precision", "tf32"]
    ended = forker.run(argv, tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    ended.require_refusal("--precision tf32 is asked for on a device without TF32.", "use --precision fp32")
    assert not (tmp_path / "out" / "config.yaml").exists()


def damaged_cifar10(folder: Path) -> str:
    """The sixth record's label is 77."""
    write_cifar10(folder)
    file = folder / "data_batch_1.bin"
    content = bytearray(file.read_bytes())
    content[5 * 3073] = 77
    file.write_bytes(content)
    return f"Record 5 of {file}, at byte offset 15365, has the label 77. Labels are 0 to 9."


def short_cifar10(folder: Path) -> str:
    """Pictures of another size: the file's length is no multiple of a record's."""
    write_cifar10(folder)
    file = folder / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-100])
    return str(file)


def damaged_mnist(folder: Path) -> str:
    """The fourth label of the training data is 12."""
    file = write_mnist(folder) / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    content = bytearray(file.read_bytes())
    content[8 + 3] = 12
    file.write_bytes(content)
    return "12"


BEFORE_TRAINING = {
    "a label": ("cifar10", damaged_cifar10),
    "pictures of another size": ("cifar10", short_cifar10),
    "mnist": ("mnist", damaged_mnist),
}


@pytest.mark.parametrize("case", BEFORE_TRAINING)
def test_files_that_are_wrong_are_refused_before_training(forker: Forker, tmp_path: Path, case: str) -> None:
    task, damage = BEFORE_TRAINING[case]
    (tmp_path / "data").mkdir()
    fact = damage(tmp_path / "data")
    argv = ["--task", task, "--model", "cnn", "--data.dir", str(tmp_path / "data"), "--output-dir", "out"]
    forker.run(argv, tmp_path, {}).require_refusal(fact)
    assert not (tmp_path / "out").exists()


def far_label_in_tar(folder: Path) -> str:
    write_photo_tars(folder, labels=(0, 1, 5))
    return "is 5. There are 3 classes, so labels are 0 to 2."


def label_zero_in_tfrecord(folder: Path) -> str:
    """Where labels begin at 1."""
    write_photo_tfrecords(folder, first=0)
    return "is -1."


def bad_word_for_a_label(folder: Path) -> str:
    write_photo_tars(folder)
    with TarWriter(folder / "train-2.tar") as writer:
        writer.write("0000", {"jpg": photo(0, 50, 60), "cls": b"cat"})
    return "has the label b'cat', which is not an integer."


def cut_photo(folder: Path) -> str:
    file = write_photo_folders(folder) / "train" / "n02" / "n02_3.JPEG"
    file.write_bytes(file.read_bytes()[:-200])
    return f"{file} @ byte 0) cannot be decoded: "


WHILE_TRAINING = {
    "a label": far_label_in_tar,
    "labels from 0": label_zero_in_tfrecord,
    "no number": bad_word_for_a_label,
    "a photo": cut_photo,
}


@pytest.mark.parametrize("case", WHILE_TRAINING)
def test_a_record_that_is_wrong_ends_training_and_is_named(forker: Forker, tmp_path: Path, case: str) -> None:
    (tmp_path / "data").mkdir()
    fact = WHILE_TRAINING[case](tmp_path / "data")
    argv = ["--task", "imagenet", "--model", "cnn", "--task-args.side", "16", "--data.dir", str(tmp_path / "data")]
    argv += ["--task-args.classes", "3"] if case != "a photo" else []
    ended = forker.run([*argv, "--output-dir", "out", "--epochs", "1", "--global-batch-size", "30"], tmp_path, {})
    assert ended.code == 1, ended
    assert fact in ended.stderr
    assert re.search(rf"record \d+ \({tmp_path}/data/\S+ @ byte \d+\)", ended.stderr), ended.stderr
    assert "\nHINT: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out" / "result.json").exists()
