"""`hvdtrain shard`: what is answered to wrong calls and odd data, and that nothing is passed over in silence."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from support.range_server import serving

import data_sharding as ds
from hvdtrain.cli.main import main
from hvdtrain.cli.shard import COMMANDS
from hvdtrain.cli.shard import run as shard
from hvdtrain.errors import UsageError


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """60 records in 3 files."""
    folder = tmp_path / "records"
    ds.write_shards(folder, "train", [bytes([number]) * (number + 1) for number in range(60)], 3)
    return folder


def test_plan_prints_every_rank_and_the_cut(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["plan", str(records), "--size", "4", "--global-batch-size", "16"]) == 0
    out = capsys.readouterr().out
    assert "60 records in 4 steps of 16: the last step has 12 records and 4 masked slots" in out
    assert [line.split()[0] for line in out.splitlines() if line[:1].isdigit()][:4] == ["0", "1", "2", "3"]
    assert f"{sum(range(1, 61)):,}" in out


@pytest.mark.parametrize("size", ["0", "1000000000"])
def test_plan_refuses_numbers_of_ranks_that_no_job_has(
    records: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", "plan", str(records), "--size", size]) == 2
    assert f"--size is {size}. It must be from 1 to 1,000,000." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("batch", "shuffle", "places"), [(128, "block", 64), (127, "block", 64), (1, "block", 1), (127, "global", 0)]
)
def test_plan_says_what_reading_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int, shuffle: str, places: int
) -> None:
    ds.write_shards(tmp_path, "train", [bytes(1000)] * 16_384, 1)
    argv = ["plan", str(tmp_path), "--size", "1", "--shuffle", shuffle, "--global-batch-size", str(batch)]
    assert shard(argv) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "requests per 1,000 records" in line]
    asked = int(line.split(": about ")[1].split()[0].replace(",", ""))
    assert (asked < 30) == (shuffle == "block")
    assert float(line.split(", ")[-1].split()[0]) < (1.1 if shuffle == "block" else 99)
    assert ("blocks kept in memory: about" in said) == (shuffle == "block")
    assert (f"mixed from {places} places" in said) == (shuffle == "block" and places > 1)


def reads(plan: ds.ShardPlan, size: int) -> int:
    """Ranges of neighbours that ranks ask for in an epoch."""
    found = 0
    for rank in range(size):
        ranges = plan.block_ranges(rank, size, plan.shards(rank, size, range(plan.steps))[0].reshape(-1))
        assert ranges is not None
        found += len({tuple(each) for each in ranges.tolist()})
    return found


@pytest.mark.parametrize(("size", "said"), [(64, False), (128, False), (160, True), (256, True)])
def test_plan_says_how_many_requests_a_block_takes_where_ranks_are_many_more_than_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int, said: bool
) -> None:
    ds.write_shards(tmp_path, "train", [bytes(1000)] * 16_384, 1)
    batch = 256
    argv = ["plan", str(tmp_path), "--size", str(size), "--shuffle", "block", "--global-batch-size", str(batch)]
    assert shard(argv) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "mixed from 64 places" in line]
    plan = ds.ShardPlan.for_catalog(ds.Catalog.index(tmp_path), global_batch=batch, seed=42, epoch=0, shuffle="block")
    requests = reads(plan, size) / reads(plan, 1)
    assert (f"of {size} ranks several read the same block" in line) == said == (requests > 2.1)
    if said:
        assert float(line.split(": about ")[1].split()[0]) == pytest.approx(requests, rel=0.05)


def test_plan_names_no_requests_where_rows_have_no_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"x": list(range(100))})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert shard(["plan", str(tmp_path), "--format", "parquet", "--size", "2", "--global-batch-size", "8"]) == 0
    assert "requests" not in capsys.readouterr().out
    argv = [
        "plan",
        str(tmp_path),
        "--format",
        "parquet",
        "--size",
        "2",
        "--global-batch-size",
        "8",
        "--shuffle",
        "block",
    ]
    assert shard(argv) == 0
    assert "each row group is decoded about" in capsys.readouterr().out


def test_index_saves_a_catalog(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["index", str(records), "--out", str(tmp_path / "catalog.npz")]) == 0
    assert ds.Catalog.load(tmp_path / "catalog.npz").fingerprint in "".join(capsys.readouterr().out.split("│")).replace(
        "\n", ""
    ).replace(" ", "")


def test_index_replaces_neither_devices_nor_data(records: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    first = sorted(records.iterdir())[0]
    (tmp_path / "link").symlink_to(first)
    content = first.read_bytes()
    for name, fact in (
        ("fifo", "FIFO"),
        (str(first), "is no catalog"),
        ("link", "is no catalog"),
        ("records", "directory"),
    ):
        with pytest.raises(UsageError, match=fact):
            shard(["index", str(records), "--out", str(tmp_path / name)])
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)
    assert first.read_bytes() == content


def test_index_asks_for_the_place_before_it_works(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo cannot be written"):
        shard(["index", str(tmp_path / "nowhere"), "--out", str(tmp_path / "fifo")])


def test_index_names_all_damage(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = sorted(records.iterdir())
    first.write_bytes(first.read_bytes()[:-3])
    second.write_bytes(b"x" * 40)
    third.write_bytes(b"")
    assert shard(["index", str(records), "--on-corrupt", "mask"]) == 1
    out = capsys.readouterr().out
    assert all(
        f"DAMAGED: {what}" in out for what in (f"{first} ends inside", f"Record 0 of {second}", f"{third} is empty")
    )
    assert shard(["index", str(records), "--on-corrupt", "mask", "--limit", "1"]) == 1
    out = capsys.readouterr().out
    assert out.count("DAMAGED: ") == 2
    assert "DAMAGED: 2 more; --limit 3 names all" in out


def test_index_publishes_what_other_commands_read(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["index", str(records), "--publish"]) == 0
    assert f"index published at {records}/data_sharding.index" in capsys.readouterr().out.replace("\n", " ")
    assert shard(["plan", str(records), "--size", "2", "--global-batch-size", "4"]) == 0
    first = sorted(records.glob("*.tfrecord"))[0]
    first.write_bytes(first.read_bytes() * 2)
    with pytest.raises(UsageError, match="is of other data"):
        shard(["plan", str(records), "--size", "2", "--global-batch-size", "4"])


def test_bench_measures(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["bench", str(records), "--seconds", "0.01", "--batch-size", "7"]) == 0
    assert capsys.readouterr().out.count("records/s") == 1


def test_bench_fills_a_cache(records: Path, tmp_path: Path) -> None:
    wanted = {file.read_bytes() for file in records.glob("*.tfrecord")}
    deadline = time.monotonic() + 60
    with serving(records) as server:
        files = [f"{server.url}/{file.name}" for file in sorted(records.glob("*.tfrecord"))]
        while not wanted <= {file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file()}:
            assert time.monotonic() < deadline
            shard(["bench", *files, "--seconds", "0.1", "--cache-dir", str(tmp_path / "cache")])


@pytest.mark.parametrize(
    ("argv", "fact"),
    [
        (["plann"], "There is no command `hvdtrain shard plann`"),
        (["plan", "DATA"], "--size"),
        (["plan", "DATA", "--size", "0"], "--size is 0"),
        (["plan", "DATA", "--size", "4", "--global-batch-size", "0"], "--global-batch-size is 0"),
        (["plan", "DATA", "--size", "4", "--global-batch-size", "9" * 20], "--global-batch-size is 999"),
        (["plan", "DATA", "--size", "99", "--global-batch-size", "16"], "smaller than the 99 ranks"),
        (["index", ""], "An empty data path"),
        (["index", "nowhere"], "does not exist"),
        (["index", "DATA", "DATA/*"], "is named twice"),
        (["index", "DATA", "--format", "tfrecrd"], "invalid choice"),
        (["index", "DATA", "--option", "multipart=dmlc"], "--option multipart=dmlc is given"),
        (["index", "DATA", "--format", "recordio", "--option", "part=x"], "has no option 'part'"),
        (["index", "DATA", "--out", "/proc/nowhere/x.npz"], "cannot be written"),
        (["index", "DATA", "--out", ""], "cannot be written"),
        (["index", "DATA/*", "--format", "text", "--option", "window=x"], "was given window='x'"),
        (["pipe-sim", "--dir", "fifos", "--channel", "../a=DATA/*"], "The channel name '../a' is not allowed"),
        (["bench", "DATA", "--seconds", "nan"], "--seconds is nan"),
        (["bench", "DATA", "--seconds", "0"], "--seconds is 0"),
        (["verify", "nowhere"], "There is no folder nowhere"),
        (["convert", "DATA", "s3://bucket/out"], "The destination is s3://bucket/out"),
    ],
)
def test_bad_calls_are_refused(records: Path, argv: list[str], fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        shard([word.replace("DATA", str(records)) for word in argv])
    assert fact in caught.value.fact
    assert caught.value.hint


@pytest.mark.parametrize("way", ["folder", "glob"])
@pytest.mark.parametrize("kind", ["dangling", "fifo"])
def test_what_looks_like_records_is_not_passed_over(records: Path, way: str, kind: str) -> None:
    odd = records / "train-9.tfrecord"
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to(records / "unmounted")
    with pytest.raises(UsageError, match="train-9"):
        shard(["index", str(records) if way == "folder" else f"{records}/*.tfrecord"])


def test_hard_links_are_one_file(records: Path) -> None:
    first = sorted(records.iterdir())[0]
    os.link(first, records / "again.tfrecord")
    with pytest.raises(UsageError, match="are one file"):
        shard(["index", str(records)])


def test_a_file_that_became_a_fifo_is_a_change(records: Path) -> None:
    catalog = ds.Catalog.index(records)
    path = Path(catalog.files[0].path)
    path.unlink()
    os.mkfifo(path)
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.ChangedDataError):
        reader.read(np.arange(3))


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_a_place_that_cannot_be_written_is_refused_before_the_files_are_read(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", "index", str(records), "--out", str(tmp_path / "nowhere" / "x.npz")]) == 2
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert not said.out


def test_a_pipe_plan_replaces_its_own_files_alone(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pipes"
    for workers, channels in ((3, 3), (2, 2)):
        argv = ["shard", "pipe-plan", str(records), "--workers-per-host", str(workers), "--out", str(out)]
        assert main(argv) == 0
        assert len(list(out.glob("*.manifest"))) == channels
    (out / "plan.json").write_text('{"mine": 1}')
    assert main(argv) == 2
    assert "is there already, and is no plan" in capsys.readouterr().err
    assert (out / "plan.json").read_text() == '{"mine": 1}'


def test_an_option_of_a_format_has_one_value(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--option", "multipart=sagemaker", "--option", "multipart=none"]
    assert main(["shard", "index", str(records), "--format", "recordio", *twice]) == 2
    assert "--option multipart is given twice" in capsys.readouterr().err


def test_files_of_zstd_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tfrecord.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(6))
    assert main(["shard", "index", str(path), "--format", "tfrecord"]) == 2
    assert "is compressed with zstd" in capsys.readouterr().err
