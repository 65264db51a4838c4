"""`hvdtrain report`, and the report at the end of a training: where it lies, and what is never written over."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Forker
from support.read_page import Page
from support.report_runs import write_run
from support.runs import result_of

from hvdtrain.cli.main import main
from hvdtrain.run.ending import write_report


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = write_run(tmp_path / "first"), write_run(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    for argv, file in (
        ([str(first)], first / "report.html"),
        ([str(first), str(other)], tmp_path / "report.html"),
        ([str(first), "--out", "here.html"], tmp_path / "here.html"),
        ([str(first)], first / "report.html"),  # over the one before
    ):
        assert main(["report", *argv]) == 0
        printed = capsys.readouterr()
        assert (Path(printed.out.strip()).resolve(), printed.err) == (file.resolve(), "")
        assert Page(file.read_text()).problems() == []


def test_what_could_not_be_read_is_told_on_the_console_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"split": "tr')
    (run / "result.json").unlink()
    assert main(["report", str(run)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"hvdtrain report: {run}: ")[:24] for line in told] == [
        "The last line of metrics",
        "There is no result.json:",
    ]


@pytest.mark.parametrize("content", [b"my notes", b"", b"<!DOCTYPE html>\n<p>mine"])
def test_the_file_of_somebody_else_is_left_alone(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    (run / "report.html").write_bytes(content)
    assert main(["report", str(run)]) == 2
    assert "is not a report of hvdtrain" in capsys.readouterr().err
    assert write_report(run, "always", 1.0) is None
    assert (run / "report.html").read_bytes() == content


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    calls = {
        "There is no folder": [str(tmp_path / "none")],
        "holds no run": [str(tmp_path / "empty")],
        "is a file": [str(run / "config.yaml")],
        "is given twice": [str(run), f"{run}/../run"],
        "9 runs were given": [str(tmp_path / str(number)) for number in range(9)],
        "cannot be written": [str(run), "--out", str(tmp_path / "no" / "folder.html")],
        "the following arguments are required: RUN": [],
    }
    for fact, argv in calls.items():
        assert main(["report", *argv]) == 2, fact
        told = capsys.readouterr().err
        assert fact in told
        assert "\nHINT: " in told


@pytest.mark.parametrize(
    ("option", "seconds", "written"),
    [("auto", 9.9, False), ("auto", 10.0, True), ("always", 0.1, True), ("never", 100.0, False)],
)
def test_when_a_training_leaves_one(option: str, seconds: float, written: bool, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    file = write_report(run, option, seconds)  # type: ignore[arg-type]
    assert (file is not None, (run / "report.html").exists()) == (written, written)
    if file is not None:
        assert "Finished after 200 updates" in Page(file.read_text()).text()


def test_an_error_costs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "hvdtrain.run")
    (tmp_path / "nothing of a run").touch()
    assert write_report(tmp_path, "always", 1.0) is None
    assert caplog.text.count("\n") <= 2
    assert "report.html was not written: UsageError: " in caplog.text


def test_a_training_says_where_its_report_is(forker: Forker, tmp_path: Path, digits_cache: Path) -> None:
    argv = ["--report", "always", "--epochs", "1", "--output-dir", "out", "--progress", "none"]
    stopped = forker.run([*argv, "--max-steps", "5"], tmp_path, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})
    assert stopped.code == 0, stopped
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "before all was trained. --max-steps has ended it; a larger one continues it." in page.text()
    ended = forker.run(argv, tmp_path, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})
    assert ended.code == 0, ended
    assert "out/report.html" in ended.stdout
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.problems() == []
    steps = result_of(tmp_path / "out")["steps"]
    assert f"Finished after {steps} updates on 1 worker" in page.text()
    assert "Proved: the finished epoch used every one of 1,438 records once." in page.text()
    assert "2 checkpoints are there; this run has written 2" in page.text()
