"""`hvdtrain shard convert` as users run it."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import Forker

import data_sharding as ds
from hvdtrain.end_signals import ENDING, exiting_at


def source(folder: Path) -> Path:
    with ds.TFRecordWriter(folder / "a.tfrecord") as writer:
        for number in range(25):
            writer.write(ds.example.encode({"x": number}))
    return folder / "a.tfrecord"


def test_a_conversion_says_what_it_wrote(forker: Forker, tmp_path: Path) -> None:
    compressed = tmp_path / "a.tfrecord.gz"
    compressed.write_bytes(gzip.compress(source(tmp_path).read_bytes()))
    done = forker.run(["shard", "convert", compressed.name, "out", "--shards", "2", "--to", "tar"], tmp_path)
    catalog = ds.Catalog.index(tmp_path / "out")
    assert (done.code, len(catalog), catalog.format.name) == (0, 25, "tar"), done
    assert done.stdout == (
        f"25 records in 2 files in {tmp_path / 'out'}, read back and equal\nfingerprint {catalog.fingerprint}\n"
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 20
    assert (lines[0], lines[-1]) == ("writing: 3 of 25 records", "checking: 25 of 25 records")


def test_options_of_both_formats_and_a_name(forker: Forker, tmp_path: Path) -> None:
    argv = ["shard", "convert", source(tmp_path).name, "out", "--to", "recordio", "--to-option", "multipart=sagemaker"]
    assert forker.run([*argv, "--name", "train", "--shuffle", "3"], tmp_path).code == 0
    catalog = ds.Catalog.index(tmp_path / "out", format=ds.format_named("recordio", {"multipart": "sagemaker"}))
    with ds.RecordReader(catalog) as reader:
        values = [int(ds.example.decode(payload)["x"][0]) for payload in reader.read(np.arange(25))]
    assert sorted(values) == list(range(25)) != values
    assert [Path(file.path).name for file in catalog.files] == ["train-00000-of-00001.rec"]


REFUSED = {
    "no shards": (["a.tfrecord", "out", "--shards", "0"], "0 files were asked for."),
    "too many shards": (["a.tfrecord", "out", "--shards", "26"], "25 records were to be distributed over 26 files."),
    "a folder in itself": ([".", "new"], "overlap"),
    "an unknown format": (["a.tfrecord", "out", "--from", "tfrecrod"], "invalid choice: 'tfrecrod'"),
    "a format that is not written": (["a.tfrecord", "out", "--to", "npz"], "invalid choice: 'npz'"),
    "an unknown option": (["a.tfrecord", "out", "--to-option", "x=1"], "has no option 'x'"),
    "half an option": (["a.tfrecord", "out", "--to-option", "x"], "has no value"),
    "no such source": (["b.tfrecord", "out"], "does not exist"),
    "no destination": (["a.tfrecord"], "DST"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, forker: Forker, tmp_path: Path) -> None:
    source(tmp_path)
    arguments, fact = REFUSED[case]
    forker.run(["shard", "convert", *arguments], tmp_path).require_refusal(fact)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tfrecord"]


def test_damage_is_bad_input(forker: Forker, tmp_path: Path) -> None:
    path = source(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    done = forker.run(["shard", "convert", path.name, "out"], tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "ends inside record 24" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_destination_that_is_a_file_is_named(forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    (source(tmp_path)).rename(tmp_path / "out" / "b.tfrecord")
    done = forker.run(["shard", "convert", "out/b.tfrecord", "out/file/x"], tmp_path)
    assert done.code == 2
    assert "Writing to out/file/x failed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_nothing(number: int, code: int, tmp_path: Path) -> None:
    with ds.TFRecordWriter(tmp_path / "one") as writer:
        writer.write(b"x")
    (tmp_path / "a.tfrecord").write_bytes((tmp_path / "one").read_bytes() * 500_000)
    command = [sys.executable, "-m", "hvdtrain", "shard", "convert", "a.tfrecord", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(number)
        rest = process.communicate(timeout=100)[1]
    assert (first, process.returncode) == ("writing: 50000 of 500000 records\n", code), rest
    assert rest.endswith(f"hvdtrain: ended by {signal.Signals(number).name}; nothing was left half done\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tfrecord", "one"]


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with exiting_at(ENDING):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
