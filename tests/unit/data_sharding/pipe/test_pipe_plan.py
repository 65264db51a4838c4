"""Each file in one channel, channels alike in bytes, and no plan that would let two workers share one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.pipe.locks import FifoOpener, check_openers
from data_sharding.pipe.pipe_plan import PipeFile, PipePlan, make_plan
from data_sharding.pipe.pipe_plan_file import describe_files, load_plan, local_paths, save_plan

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


def files_of(some: list[int]) -> list[PipeFile]:
    return [PipeFile(f"part-{number:03d}", size, size * 2) for number, size in enumerate(some)]


@given(sizes, st.integers(1, 20), st.randoms())
def test_laws_of_dealing(some: list[int], channels: int, random: object) -> None:
    assume(len(some) >= channels)
    files = files_of(some)
    plan = make_plan(files, workers_per_host=channels)
    dealt = [file for channel in plan.channels for file in channel.files]
    assert sorted(dealt, key=lambda file: file.name) == files
    assert all(channel.files for channel in plan.channels)
    loads = [channel.bytes for channel in plan.channels]
    # Graham: whoever is fullest was emptiest before it got its last, smallest file.
    fullest = max(plan.channels, key=lambda channel: channel.bytes)
    assert max(loads) - min(file.size for file in fullest.files) <= min(loads)
    assert plan.rank_records() == tuple(2 * load for load in loads)
    random.shuffle(files)  # type: ignore[attr-defined]
    assert make_plan(files, workers_per_host=channels) == plan


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7), st.integers(1, 3))
def test_at_most_four_thirds_of_the_best(some: list[int], channels: int) -> None:
    assume(len(some) >= channels)
    best = min(
        max(
            sum(size for size, owner in zip(some, owners, strict=True) if owner == channel)
            for channel in range(channels)
        )
        for owners in itertools.product(range(channels), repeat=len(some))
    )
    plan = make_plan(files_of(some), workers_per_host=channels)
    assert max(channel.bytes for channel in plan.channels) <= best * (4 / 3 - 1 / (3 * channels)) + 1e-9


def test_4000_files_on_4_workers() -> None:
    plan = make_plan(files_of([100] * 4000), workers_per_host=4)
    assert [len(channel.files) for channel in plan.channels] == [1000] * 4


def test_whose_channel() -> None:
    divided = make_plan(files_of([1] * 6), workers_per_host=3, hosts=2)
    assert [divided.channel(rank, rank % 3).name for rank in range(6)] == [f"train-{rank}" for rank in range(6)]
    sharded = make_plan(files_of([1] * 6), workers_per_host=3, hosts=2, distribution="sharded-by-s3-key")
    assert [sharded.channel(rank, rank % 3).name for rank in range(6)] == [f"train-{rank % 3}" for rank in range(6)]
    assert divided.rank_records() == (2,) * 6
    assert sharded.rank_records() is None
    with pytest.raises(ds.PlanError, match=r"Rank 6 \(local rank 0\) asks for channel 6 of 6"):
        divided.channel(6, 0)


def test_counts_of_one_host_are_known_in_both_ways() -> None:
    one = make_plan(files_of([1, 1]), workers_per_host=2, distribution="sharded-by-s3-key")
    assert one.rank_records() == (2, 2)
    uncounted = make_plan([PipeFile("a", 1), PipeFile("b", 1, 7)], workers_per_host=2)
    assert uncounted.rank_records() is None


REFUSED = {
    "channels": ({"workers_per_host": 8, "hosts": 3}, "would take 24 channels", "--distribution sharded-by-s3-key"),
    "local": (
        {"workers_per_host": 21, "distribution": "sharded-by-s3-key"},
        "would take 21 channels",
        "start 20 workers a host or fewer",
    ),
    "files": (
        {"workers_per_host": 4, "files": files_of([1] * 3)},
        "3 files were to be distributed over 4",
        "4 files or more",
    ),
    "empty": ({"workers_per_host": 1, "files": [PipeFile("a", 0)]}, "a holds no record", "leave it out"),
    "no records": ({"workers_per_host": 1, "files": [PipeFile("a", 9, 0)]}, "a holds no record", "leave it out"),
    "twice": ({"workers_per_host": 1, "files": [PipeFile("a", 1)] * 2}, "a is named twice", "name it once"),
    "name": ({"workers_per_host": 1, "channel": "a/b"}, "The channel name 'a/b-0' is not allowed", "letters"),
    "workers": ({"workers_per_host": 0}, "workers_per_host is 0", "1 or more"),
    "distribution": (
        {"workers_per_host": 1, "distribution": "copied"},
        "'copied' was asked for. It can be divided or sharded-by-s3-key",
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    arguments, fact, hint = REFUSED[case]
    files = arguments.pop("files", files_of([1] * 30)) if "files" in arguments else files_of([1] * 30)
    with pytest.raises(ds.PlanError, match=fact) as caught:
        make_plan(files, **arguments)
    assert hint in caught.value.hint


def test_saved_and_loaded(tmp_path: Path, data_folder: Path) -> None:
    prefix, files = describe_files(data_folder, "tfrecord")
    plan = make_plan(files, workers_per_host=2, prefix="s3://bucket/key/")
    written = save_plan(plan, tmp_path / "plan")
    assert [path.name for path in written] == ["plan.json", "train-0.manifest", "train-1.manifest"]
    assert load_plan(tmp_path / "plan") == load_plan(written[0]) == plan
    assert sorted(plan.rank_records() or ()) == [28, 29]
    manifest = json.loads(written[1].read_text())
    assert manifest[0] == {"prefix": "s3://bucket/key/"}
    assert manifest[1:] == [file.name for file in plan.channels[0].files]
    with pytest.raises(ds.PlanError, match="HINT: say where copies of them are"):
        local_paths(plan, plan.channels[0])
    assert all(Path(path).is_file() for path in local_paths(plan, plan.channels[0], data_folder))
    assert Path(prefix) == data_folder


def test_the_common_folder(tmp_path: Path) -> None:
    for name in ("a/x.tfrecord-00000-of-00001", "ab/y.tfrecord"):
        (tmp_path / name).parent.mkdir()
        ds.write_shards(tmp_path, "z", [b"1"], 1)[0].rename(tmp_path / name)
    prefix, files = describe_files([tmp_path / "a", tmp_path / "ab"], "tfrecord")
    assert prefix == f"{tmp_path}/"
    assert [(file.name, file.records) for file in files] == [("a/x.tfrecord-00000-of-00001", 1), ("ab/y.tfrecord", 1)]


def test_recordio_is_counted(tmp_path: Path) -> None:
    frame = bytes.fromhex("0a23d7ce") + (3).to_bytes(4, "little") + b"abc\0"
    (tmp_path / "a.rec").write_bytes(frame * 5)
    assert describe_files(tmp_path, "recordio")[1] == [PipeFile("a.rec", 60, 5)]
    assert describe_files(tmp_path, "recordio", count=False)[1] == [PipeFile("a.rec", 60, None)]
    (tmp_path / "a.rec").write_bytes(frame * 5 + b"?")
    with pytest.raises(ds.CorruptRecordError, match=r"byte offset 60 of .*a\.rec"):
        describe_files(tmp_path, "recordio")


def saved(plan: PipePlan, folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(save_plan(plan, folder)[0].read_text())
    return content


DAMAGE = {
    "format": lambda content: content.update(format="data_sharding.pipe_plan/9"),
    "framing": lambda content: content.update(framing="csv"),
    "missing": lambda content: content.pop("hosts"),
    "type": lambda content: content.update(hosts="1"),
    "bool": lambda content: content.update(hosts=True),
    "sums": lambda content: content["channels"][0].update(bytes=5),
    "files": lambda content: content["channels"][0].update(files=[["a"]]),
    "null": lambda content: content.update(channels=None),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_plan(case: str, tmp_path: Path) -> None:
    content = saved(make_plan(files_of([1, 2]), workers_per_host=2), tmp_path)
    DAMAGE[case](content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ds.CatalogError, match="is not a pipe plan"):
        load_plan(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"', "\udc80"])
def test_no_plan_at_all(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ds.CatalogError, match="is not a pipe plan"):
        load_plan(tmp_path)
    with pytest.raises(ds.MissingDataError, match="cannot be opened: No such file"):
        load_plan(tmp_path / "other")


def test_a_plan_whose_channels_contradict_its_job(tmp_path: Path) -> None:
    content = saved(make_plan(files_of([1, 2]), workers_per_host=2), tmp_path)
    content["workers_per_host"] = 3
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ds.PlanError, match="2 channels for 1 hosts of 3 workers"):
        load_plan(tmp_path)


def claim(rank: int, host: str, channel: str, inode: int) -> FifoOpener:
    return FifoOpener(rank, host, rank % 2, channel, f"machine of {host}", 5, inode)


def test_claims() -> None:
    check_openers([claim(0, "a", "train-0", 7), claim(1, "a", "train-1", 8), claim(2, "b", "train-0", 7)])
    with pytest.raises(ds.PlanError) as caught:
        check_openers([claim(0, "a", "train-0", 7), claim(1, "b", "train-0", 7), claim(2, "a", "train-9", 7)])
    assert "rank 0 (local rank 0 on a, channel train-0) and by rank 2 (local rank 0 on a, channel train-9)" in str(
        caught.value
    )
