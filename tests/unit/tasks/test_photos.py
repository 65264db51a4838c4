"""ImageNet in each of the ways it is kept: same pixels as torchvision's transforms, and bad photos named."""

from __future__ import annotations

import functools
import io
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from numpy.typing import NDArray
from picture_files import photo, write_photo_folders, write_photo_tars, write_photo_tfrecords
from PIL import Image
from support.commands import Forker
from support.processes import wait_until
from support.range_server import serving
from support.runs import result_of

from data_sharding import Catalog, FileCache, MissingDataError, RecordBatch, RecordReader
from data_sharding.sample_random import SampleRandom
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.models.torchvision_import import import_torchvision
from hvdtrain.task import data_access
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.pictures.mixup import Mixup
from hvdtrain.tasks.pictures.photos import CropDraws, random_window, validation_pixels
from hvdtrain.tasks.torch import TorchImageNet

WRITERS = {"folders": write_photo_folders, "tar": write_photo_tars, "tfrecord": write_photo_tfrecords}
SMALL: dict[str, Any] = {"model": "cnn", "side": 24}


def opened(folder: Path, **arguments: Any) -> tuple[TorchImageNet, Catalog, Catalog]:
    task = TorchImageNet(**{**SMALL, **arguments})
    splits = task.open_data(DataAccess(str(folder / "data"), folder / "cache"))
    assert splits.validation is not None
    return task, splits.train, splits.validation


def load(catalog: Catalog, training: bool = False, epoch: int = 0) -> RecordBatch:
    ids = np.arange(len(catalog))
    with RecordReader(catalog) as reader:
        return reader.load(ids, SampleRandom(1, epoch, ids) if training else None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_gives_pixels_and_labels(tmp_path: Path, data: Path, layout: str) -> None:
    writer: Callable[[Path], Path] = WRITERS[layout]
    writer(data)
    task, train, validation = opened(tmp_path, **({} if layout == "folders" else {"classes": 3}))
    assert task.classes == 3
    for catalog, training in ((train, True), (validation, False)):
        features = task.decode(load(catalog, training))
        assert features["image"].shape == (len(catalog), 24, 24, 3)
        assert features["image"].dtype == np.uint8
        brightness = features["image"].mean(axis=(1, 2, 3))
        np.testing.assert_array_equal(np.unique(features["label"]), [0, 1, 2])
        for label in (0, 1, 2):  # each class is brighter than the one before
            assert brightness[features["label"] == label].mean() == pytest.approx(20 * label + 20, abs=12)
    again, other = (task.decode(load(train, True, epoch))["image"] for epoch in (0, 1))
    assert not np.array_equal(again, other)


@pytest.mark.parametrize(("layout", "pattern"), [("folders", "val"), ("tar", "val*.tar"), ("tfrecord", "val*")])
def test_files_that_are_named_are_read_like_the_task_s_own(
    tmp_path: Path, data: Path, layout: str, pattern: str
) -> None:
    """Also by the task of a trained model, which opens no other data."""
    WRITERS[layout](data)
    task, _, validation = opened(tmp_path, **({} if layout == "folders" else {"classes": 3}))
    expected = task.decode(load(validation))
    access = DataAccess(str(data), tmp_path / "cache")
    for each in (task, TorchImageNet(**SMALL, classes=3)):
        features = each.decode(load(each.open_set(access, pattern)))
        for name, array in expected.items():
            np.testing.assert_array_equal(features[name], array)


def test_the_task_of_a_trained_model_numbers_classes_as_its_training_did(tmp_path: Path, data: Path) -> None:
    """Where a set lacks a class, and where one of as many folders has another name."""
    write_photo_folders(data)
    shutil.rmtree(data / "val" / "n02")
    shutil.copytree(data / "val", data / "other")
    (data / "other" / "n99").mkdir()
    task, _, validation = opened(tmp_path, mixup=0.2)
    expected = task.decode(load(validation))
    access = DataAccess(str(data), tmp_path / "cache")
    rebuilt = TorchImageNet(**SMALL, **{"mixup": 0.2, **json.loads(json.dumps(task.found))})
    for catalog in (rebuilt.open_validation(access), rebuilt.open_set(access, "other")):
        assert catalog is not None
        labels = rebuilt.decode(load(catalog))["label"]
        np.testing.assert_array_equal(labels, expected["label"])
        assert set(labels) == {0, 2}

    class OfTheirOwn(TorchImageNet):
        def __init__(self, classes: int | None = None) -> None:
            super().__init__(**SMALL, classes=classes)

    class OfAnyOptions(TorchImageNet):
        def __init__(self, **options: Any) -> None:
            super().__init__(**SMALL, **options)

    for theirs, found in ((OfTheirOwn(), {"classes"}), (OfAnyOptions(), {"classes", "class_names"})):
        theirs.open_data(access)
        assert set(theirs.found) == found, "what its constructor takes"
        assert type(theirs)(**theirs.found).classes == 3
    shutil.copytree(data / "val" / "n01", data / "other" / "n98")
    with pytest.raises(MissingDataError, match="in the folder 'n98' of .*The classes are n01, n02, n03"):
        rebuilt.open_set(access, "other")


def test_validation_is_torchvision_s_resize_and_center_crop() -> None:
    import_torchvision()
    from torchvision.transforms import v2

    transform = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    for number, (width, height) in enumerate([(300, 200), (200, 301), (500, 500), (224, 224), (97, 33)]):
        content = photo(1, width, height, number)
        expected = np.asarray(transform(Image.open(io.BytesIO(content)).convert("RGB")))
        np.testing.assert_array_equal(validation_pixels(content, 224), expected)


def test_training_crops_are_distributed_as_torchvision_s() -> None:
    """Mean and spread of area, ratio and corner over many draws, against RandomResizedCrop.get_params."""
    import_torchvision()
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    count = 4000
    for width, height in ((400, 300), (100, 500)):
        draws = CropDraws.of(SampleRandom(3, 0, np.arange(count)))
        own = np.array([random_window(width, height, draws, row) for row in range(count)], np.float64)
        image = torch.zeros(1, height, width)
        params = [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
        theirs = np.array([(left, top, wide, high) for top, left, high, wide in params], np.float64)
        assert (own[:, 0] + own[:, 2] <= width).all()
        assert (own[:, 1] + own[:, 3] <= height).all()
        error = np.sqrt(own.var(0) + theirs.var(0)) / np.sqrt(count) + 1e-9
        assert (np.abs(own.mean(0) - theirs.mean(0)) < 5 * error).all()
        np.testing.assert_allclose(own.std(0), theirs.std(0), rtol=0.1, atol=1e-9)


def test_a_validation_folder_may_lack_a_class(tmp_path: Path, data: Path) -> None:
    write_photo_folders(data)
    for path in (data / "val" / "n02").iterdir():
        path.unlink()
    (data / "val" / "n02").rmdir()
    task, _, validation = opened(tmp_path)
    assert set(task.decode(load(validation))["label"].tolist()) == {0, 2}


@pytest.mark.parametrize(("first", "arguments"), [(1, {}), (0, {"first_label": 0})])
def test_labels_of_tfrecords_begin_where_they_begin(
    tmp_path: Path, data: Path, first: int, arguments: dict[str, Any]
) -> None:
    write_photo_tfrecords(data, first=first)
    task, train, _ = opened(tmp_path, classes=3, **arguments)
    assert task.decode(load(train))["label"].tolist() == 2 * [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_a_label_out_of_range_names_its_record(tmp_path: Path, data: Path) -> None:
    write_photo_tars(data, labels=(0, 1, 5))
    task, train, _ = opened(tmp_path, classes=3)
    with pytest.raises(HvdtrainError, match=r"The label of record 2 \(.*train-0\.tar @ byte \d+\) is 5\.") as caught:
        task.decode(load(train, training=True))
    assert "labels are 0 to 2" in str(caught.value)


def bad_png() -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.zeros((30, 30), np.uint16)).save(content, "PNG")
    return content.getvalue()


BAD: dict[str, tuple[bytes, str]] = {
    "no picture": (b"not a picture", "cannot be decoded"),
    "cut short": (photo(1, 60, 60)[:300], "cannot be decoded"),
    "empty": (b"", "cannot be decoded"),
    "deep": (bad_png(), "has pixels of mode I"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("training", [True, False])
def test_a_bad_photo_is_named(tmp_path: Path, data: Path, case: str, training: bool) -> None:
    content, how = BAD[case]
    write_photo_folders(data)
    bad = data / ("train" if training else "val") / "n02" / "n02_2.JPEG"
    bad.write_bytes(content or b" ")
    task, train, validation = opened(tmp_path)
    with pytest.raises(HvdtrainError, match=f"{bad} @ byte 0\\) {how}"):
        task.decode(load(train if training else validation, training))


def test_a_damaged_partner_leaves_its_picture_unmixed(tmp_path: Path, data: Path) -> None:
    write_photo_tfrecords(data)
    path = data / "train-00000-of-00002"
    content = bytearray(path.read_bytes())
    content[200] ^= 0x40  # in the first record's payload
    path.write_bytes(content)
    task = TorchImageNet(**SMALL, classes=3, mixup=1.0)
    train = task.open_data(DataAccess(str(data), tmp_path / "cache", on_corrupt="mask")).train
    ids = np.tile(np.arange(1, len(train)), 3)
    with RecordReader(train, on_corrupt="mask") as reader:
        batches = [reader.load(ids, SampleRandom(1, epoch, ids)) for epoch in range(3)]
    met = 0
    for batch in batches:
        assert batch.random is not None
        others, share = Mixup(1.0, "mask").partners(batch)
        assert (share[others.ids == 0] == 256).all()
        assert (share[others.ids != 0] < 256).any()
        met += int((others.ids == 0).sum())
        np.testing.assert_array_equal(task.decode(batch)["target"][others.ids == 0].max(axis=1), 1.0)
    assert met > 0


def test_partners_and_names_of_records_are_of_the_part_that_is_trained_on(tmp_path: Path, data: Path) -> None:
    """Those of --data.validation-split, --data.folds and --data.subset: the others are not to be learnt."""
    write_photo_folders(data)
    task, train, _ = opened(tmp_path, mixup=1.0)
    part, held_out = train.split(0.6, seed=3)
    records = load(part, training=True)
    partners, _ = Mixup(1.0, "raise").partners(records)
    assert partners.catalog is part
    trained, others = ({*RecordReader(each).read(np.arange(len(each)))} for each in (part, held_out))
    assert set(partners.payloads) <= trained - others
    assert len(set(partners.payloads)) > 3
    assert task.describe(records, 3) == f"record 3 ({part.describe(3)})"
    assert part.describe(3) != train.describe(3)


def test_mixing_is_refused_where_records_come_once(tmp_path: Path, data: Path) -> None:
    write_photo_tars(data)
    access = DataAccess(str(data), tmp_path / "cache", is_piped=True)
    for call in (lambda task: task.open_validation(access), lambda task: task.open_set(access, "val*.tar")):
        call(TorchImageNet(**SMALL))
        with pytest.raises(UsageError, match="mixup is 0.2 in pipe mode"):
            call(TorchImageNet(**SMALL, mixup=0.2))


def test_partners_come_from_copies_of_remote_files(tmp_path: Path, data: Path) -> None:
    write_photo_tfrecords(data)
    with serving(data) as store:
        train = Catalog.index([f"{store.url}/{path.name}" for path in sorted(data.glob("train-*"))])
        cache = FileCache(tmp_path / "copies")
        ids = np.arange(len(train))
        with RecordReader(train, cache=cache) as reader:
            batch = reader.load(ids, SampleRandom(1, 0, ids))
            for entry in train.files:
                wait_until(f"a copy of {entry.path}", functools.partial(cache.find, entry))
        store.broken = True
        others, _ = Mixup(1.0, "raise", cache).partners(batch)
        assert len(others) == len(ids)


def test_records_of_other_content_are_told(tmp_path: Path, data: Path) -> None:
    from data_sharding.example import encode
    from data_sharding.formats import TFRecordWriter

    for split in ("train", "validation"):
        with TFRecordWriter(data / f"{split}-0.tfrecord") as writer:
            writer.write(encode({"x": [1.0], "y": 3}))
    task, train, _ = opened(tmp_path)
    with pytest.raises(HvdtrainError, match="has the features x, y, not image/encoded and image/class/label"):
        task.decode(load(train))


def test_what_is_looked_for_is_told(tmp_path: Path, data: Path) -> None:
    with pytest.raises(UsageError, match="holds no photos to train on") as caught:
        opened(tmp_path)
    assert "ILSVRC2012_img_train.tar" in caught.value.hint
    write_photo_folders(data)
    with pytest.raises(UsageError, match="There are 3 folders of classes, and the task's argument classes is 5"):
        opened(tmp_path, classes=5)


def test_flat_validation_folder_is_not_taken(tmp_path: Path, data: Path) -> None:
    """As ILSVRC2012_img_val.tar unpacks: the labels of these photos are elsewhere."""
    from data_sharding.errors import MissingDataError

    write_photo_folders(data)
    for path in list((data / "val").glob("*/*")):
        path.rename(data / "val" / path.name)
    with pytest.raises(MissingDataError, match="is in no folder"):
        opened(tmp_path)


@pytest.mark.parametrize(("layout", "model"), [("folders", "resnet18"), ("tfrecord", "cnn")])
def test_imagenet_trains(forker: Forker, tmp_path: Path, data: Path, layout: str, model: str) -> None:
    WRITERS[layout](data)
    argv = ["--task", "imagenet", "--model", model, "--task-args.side", "32", "--data.dir", str(data)]
    argv += ["--max-steps", "1", "--global-batch-size", "4", "--output-dir", "out", "--data.threads", "2"]
    ended = forker.run(argv, tmp_path, {})
    assert ended.code == 0, ended
    assert set(result_of(tmp_path / "out")["metrics"]) == {"loss", "accuracy", "top5"}


def test_synthetic_pictures_need_no_data(forker: Forker, tmp_path: Path) -> None:
    argv = ["--task", "synthetic", "--model", "cnn", "--task-args.side", "16", "--task-args.records", "40"]
    for folder in ("one", "two"):
        ended = forker.run([*argv, "--max-steps", "2", "--output-dir", folder], tmp_path, {"HVDTRAIN_CACHE_DIR": "c"})
        assert ended.code == 0, ended
    results = [result_of(tmp_path / folder) for folder in ("one", "two")]
    assert results[0]["weights"] == results[1]["weights"]


def test_synthetic_records_differ(tmp_path: Path) -> None:
    from hvdtrain.tasks.torch import TorchSynthetic

    task = TorchSynthetic(model="cnn", records=30, side=8, classes=7)
    train = task.open_data(DataAccess(None, tmp_path)).train
    features = task.decode(load(train, training=True))
    images: NDArray[np.uint8] = features["image"]
    assert len({image.tobytes() for image in images}) == 30
    assert features["label"].tolist() == [number % 7 for number in range(30)]


def test_synthetic_records_are_written_once_by_workers_that_start_together(tmp_path: Path) -> None:
    """Whoever waited for the lock leaves the file alone: others have opened it, and a new one would not be theirs."""
    from hvdtrain.tasks.torch import TorchSynthetic

    def opened_at_once(_: int) -> int:
        barrier.wait(timeout=60)
        TorchSynthetic(model="cnn", records=7, side=4).open_data(DataAccess(None, tmp_path))
        return (tmp_path / "synthetic-7.npy").stat().st_ino

    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as workers:
        assert len(set(workers.map(opened_at_once, range(8)))) == 1


def test_tasks_that_make_their_records_take_any_cache_or_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvdtrain.tasks.torch import TorchDigits, TorchSynthetic

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_access, "_LOCK_SECONDS", 0.1)
    (tmp_path / "file").touch()
    synthetic = TorchSynthetic(model="cnn", records=7, side=4)
    for task, name, records in ((TorchDigits(), "digits-v1", 1438), (synthetic, "synthetic-7.npy", 7)):
        with pytest.raises(UsageError, match=r"cannot be written to .*file/cache: .* The task keeps its records there"):
            task.open_data(DataAccess(None, Path("file/cache")))
        (tmp_path / "cache").mkdir(exist_ok=True)
        with FileLock(tmp_path / "cache" / f".{name}.lock"), pytest.raises(UsageError, match="was held for 0 s"):
            task.open_data(DataAccess(None, Path("cache")))
        assert len(task.open_data(DataAccess(None, Path("cache"))).train) == records
