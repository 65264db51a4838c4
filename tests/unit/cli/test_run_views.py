"""`hvdtrain ls`, `compare`, `logs` and `top --once`: what people and scripts get, from any folder."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.rights import no_root, public_folder
from support.run_folders import FakeRun, logged

from hvdtrain.cli import tables
from hvdtrain.cli.main import main
from hvdtrain.cli.top.screen import rows
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.history.heartbeats import Heard, Heartbeat
from hvdtrain.run.run_folder import RunFolder

HEAD = b"2026-11-24T23:38:0%d.000+00:00 %s hvdtrain.run: %s"


def beat(rank: int, size: int = 2, **changed: object) -> Heartbeat:
    values: dict[str, object] = {"host": f"node{rank}", "step": 40, "total_steps": 100, "framework": "torch", **changed}
    return Heartbeat(rank=rank, size=size, start="a", pid=1, time=time.time(), **values)  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Below runs/: one that has finished, one that was killed, one that is broken."""
    monkeypatch.chdir(tmp_path)
    FakeRun.begun(tmp_path / "runs" / "good", TrainConfig(lr=0.1)).audit("f").ended()
    FakeRun.begun(tmp_path / "runs" / "killed", TrainConfig(lr=0.2)).audit("f").events(logged(7))
    broken = FakeRun.begun(tmp_path / "runs" / "broken").ended().folder
    (broken / "config.yaml").write_text("task: [")
    (broken / "result.json").write_text("{")
    return tmp_path / "runs"


def shown(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_a_list_shows_every_run_and_what_is_wrong_with_some(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(["ls"], capsys)
    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    assert list(lines)[0] == "run"
    assert lines["good"][1:7] == ["finished", "torch", "digits", "2", "100", "accuracy"]
    assert lines["killed"][1] == "lost"
    assert lines["broken"][1] == "finished"  # as its last line says
    assert "killed: it ended without a word, as a killed run does, and has no checkpoint\n" in out
    assert "broken: config.yaml is damaged or half written.\n" in out
    assert "broken: result.json is damaged or half written.\n" in out
    assert shown(["ls", str(runs / "good")], capsys).count("\n") == 2


@pytest.mark.usefixtures("runs")
def test_a_list_goes_on_beside_what_cannot_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a-file").touch()
    assert main(["ls", "a-file", "runs/good"]) == 2
    out, err = capsys.readouterr()
    assert "good" in out
    assert "a-file is a file. No runs can be listed there.\nHINT: " in err


def test_names_and_logs_do_not_control_the_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "good").rename(runs / "red\x1b[31m")
    FakeRun(runs / "red\x1b[31m").log(0, [HEAD % (1, b"INFO", b"\x1b]0;title\x07\x9b")])
    for command in (["ls"], ["logs", "runs/red\x1b[31m"]):
        out = shown(command, capsys)
        assert not set(out) & {"\x1b", "\x07", "\x9b"}
        assert "\\x1b" in out


def test_what_cannot_be_read_is_said_and_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun.begun(tmp_path / "run").folder
    (run / "metrics.jsonl").unlink(missing_ok=True)
    (run / "metrics.jsonl").mkdir()
    (run / "heartbeats").mkdir()
    (run / "heartbeats" / "rank_0.json").write_text("{")
    assert "how it ended is not known: metrics.jsonl cannot be read: Is a directory" in shown(["ls", str(run)], capsys)
    out = shown(["top", "--once", str(run)], capsys)
    assert "its heartbeat cannot be read" in out
    assert "unknown" in out


def test_a_list_for_scripts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {one["name"]: one for one in json.loads(shown(["ls", "--json", "runs"], capsys))}
    assert set(found) == {"good", "killed", "broken"}
    assert (found["good"]["state"], found["good"]["measure"]["value"], found["good"]["problems"]) == (
        "finished",
        0.9,
        [],
    )
    assert found["killed"]["steps"] == 7
    (runs / "empty").mkdir()
    assert json.loads(shown(["ls", "--json", "runs/empty"], capsys)) == []


def test_no_runs_are_said_and_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ls"]) == 2
    assert "There is no folder runs." in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["ls"]) == 0
    assert capsys.readouterr() == ("", "hvdtrain: no runs in runs\n")


def test_narrow_terminals_lose_columns_and_never_names_states_or_results() -> None:
    columns = [
        tables.Column("run", ["a" * 30]),
        tables.Column("task", ["b" * 20], priority=1),
        tables.Column("time", ["c" * 10], priority=2),
    ]
    for width, heads in ((64, ["run", "task", "time"]), (63, ["run", "time"]), (41, ["run"]), (5, ["run"])):
        assert [column.head for column in tables._fitting(columns, width)] == heads


@pytest.mark.usefixtures("runs")
def test_a_comparison_tells_what_differs_only(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(["compare", "runs/good", "runs/killed"], capsys)
    assert re.search(r"^A +runs/good +finished$", out, re.MULTILINE)
    assert re.search(r"^lr +0\.1 +0\.2$", out, re.MULTILINE)
    assert "environment: equal" in out
    assert "epochs" not in out
    assert re.search(r"^validation accuracy +0\.9 +– *$", out, re.MULTILINE)
    assert re.search(r"^training accuracy +– +0\.75 *$", out, re.MULTILINE)
    assert re.search(r"^steps +100 +7 +−93 *$", out, re.MULTILINE)
    assert re.search(r"^best loss +0\.25 +– *$", out, re.MULTILINE)
    assert "weights: unknown" in out
    assert "data: equal (f)" in out
    assert "batches of each step: the same records" in out


@pytest.mark.usefixtures("runs")
def test_a_comparison_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(["compare", "--json", "runs/good", "runs/killed"], capsys))
    assert found["config"] == {"lr": [0.1, 0.2]}
    assert found["outcome"]["validation accuracy"] == {"values": [0.9, None], "changes": [None]}
    assert [run["state"] for run in found["runs"]] == ["finished", "lost"]
    assert found["data"]["same_batches"] is True


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    "argv", [["compare", "runs/good"], ["compare", "runs/good", "runs/none"], ["top", "runs/none"], ["logs", "runs"]]
)
def test_what_is_no_run_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "\nHINT: " in err


@pytest.fixture
def logs(runs: Path) -> Path:
    run = FakeRun(runs / "good")
    run.log(0, [HEAD % (1, b"INFO", b"one"), HEAD % (4, b"ERROR", b"four"), b"Traceback:", b"  File x"])
    run.log(10, [HEAD % (2, b"WARNING", b"two"), HEAD % (3, b"INFO", b"three")], b"torn")
    return run.folder


def test_logs_are_one_log(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(["logs", str(logs)], capsys).splitlines()
    assert [re.sub(r" 2026.*: ", " ", line) for line in lines] == [
        *["rank 0  one", "rank 10  two", "rank 10  three", "rank 10  torn"],
        *["rank 0  four", "rank 0  Traceback:", "rank 0    File x"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rank", "10"], ["two", "three", "torn"]),
        (["--rank", "0", "--rank", "9-10", "--follow", "--level", "warning"], ["two", "four", "Traceback:", "x"]),
        (["--level", "error"], ["four", "Traceback:", "x"]),
        (["--follow", "--level", "error"], ["four", "Traceback:", "x"]),  # which ends, as the run has
    ],
)
def test_parts_of_logs(options: list[str], words: list[str], logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(["logs", str(logs), *options], capsys).splitlines()
    assert [line.split()[-1] for line in lines] == words


def test_ranks_that_have_no_log(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(logs), "--rank", "0,9-10"]) == 2
    assert "has no logs/rank_9.log. There are logs of ranks 0, 10." in capsys.readouterr().err


@pytest.fixture
def host_logs(logs: Path) -> Path:
    """Beside logs of ranks, of an earlier start with fewer of them."""
    lines = [HEAD % (5, b"INFO", b"five"), HEAD % (6, b"ERROR", b"six"), b"Traceback:", HEAD % (7, b"INFO", b"seven")]
    for line, rank in zip(lines, (10, 11, 0, 10), strict=True):
        lines[lines.index(line)] = re.sub(rb"(INFO|ERROR) ", rb"\1 rank %d " % rank, line)
    (logs / "logs" / "host_a.log").write_bytes(b"".join(line + b"\n" for line in lines))
    return logs


def test_logs_of_hosts_are_in_the_log(host_logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(["logs", str(host_logs)], capsys).splitlines()
    assert [re.sub(r" 2026.*: ", " ", line) for line in lines[-4:]] == [
        *["rank 10  five", "rank 11  six", "rank 11  Traceback:", "rank 10  seven"],
    ]
    assert " INFO hvdtrain" in lines[-1]
    words = [line.split()[-1] for line in shown(["logs", str(host_logs), "--rank", "10-11"], capsys).splitlines()]
    assert words == ["two", "three", "torn", "five", "six", "Traceback:", "seven"]


def test_a_rank_without_a_line_in_logs_of_hosts(host_logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(host_logs), "--rank", "10-12"]) == 2
    assert "has no line of rank 12. There are logs of ranks 0, 10, 11." in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["x", "1-", "-1", "1,,2", "9999999999"])
def test_ranks_that_cannot_be(ranks: str, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(logs), f"--rank={ranks}"]) == 2
    assert "does not name ranks such as 3, or 0,4-7" in capsys.readouterr().err


def test_one_look_at_a_running_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(runs / "killed").beats(
        beat(0, waits_in="gradients.0", steps_per_second=12.5, memory=3 * 2**30),
        beat(1, step=39, phase="data", seconds=12.0, reads="reading record 7"),
    )
    folder = RunFolder(run.folder, 1)
    folder.claim()
    out = shown(["top", "--once", "runs/killed"], capsys)
    folder.release()
    assert re.match(r"killed +running +torch, 2 ranks on 2 hosts\n", out)
    assert re.search(r"40% epoch 1 +step 40/100 +loss 0\.5000 +1,234 samples/s +5 s left", out)
    assert re.search(r"^ +0 +node0 +waiting in gradients\.0 +40 +12\.5 +3 GiB +0 s ago *$", out, re.MULTILINE)
    assert re.search(r"^ +1 +node1 +data for 12 s, reading record 7 +39 +0 s ago *$", out, re.MULTILINE)
    assert "GPU" not in out


@pytest.mark.usefixtures("runs")
def test_one_look_at_a_run_without_heartbeats(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(["top", "runs/good"], capsys)  # the output is no terminal
    assert out.startswith("good  finished  2 ranks")
    assert "No rank has written a heartbeat" in out
    assert "not heard of" not in out


def test_of_many_ranks_those_that_need_a_look_come_first() -> None:
    heard = {rank: Heard(beat(rank, size=100), 1.0) for rank in range(100) if rank != 5}
    heard[70] = Heard(beat(70, end="failed", error="ValueError: x"), 1.0)
    heard[80] = Heard(beat(80), 40.0)
    heard[90] = Heard(beat(90, step=39), 1.0)
    heard |= {rank: Heard(beat(rank, waits_in="gradients.0"), 1.0) for rank in range(60) if rank not in (5, 33)}
    found, left = rows(heard, 100, 5)
    assert [row.rank for row in found] == [70, 5, 80, 90, 33]
    assert left == 95
    assert [row.state for row in found][:3] == [
        "failed: ValueError: x",
        "not heard of",
        "silent for 40 s (was: starting)",
    ]
    assert [row.rank for row in rows(heard, 100, 100)[0]] == list(range(100))


def test_the_last_collective_is_shown_where_a_rank_waits_in_none() -> None:
    heard = {
        0: Heard(beat(0, phase="step", collective="gradients.3"), 1.0),
        1: Heard(beat(1, phase="step", collective="gradients.3", waits_in="gradients.4"), 1.0),
    }
    states = [row.state for row in rows(heard, 2, 2)[0]]
    assert states == ["step, last collective gradients.3", "waiting in gradients.4"]


@pytest.mark.parametrize("command", [["ls"], ["shard", "verify"], ["checkpoint", "ls"], ["logs"]])
def test_a_run_without_rights_is_told_in_a_sentence(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In its own folder, and in the one above."""
    with public_folder() as folder:
        run = FakeRun.begun(folder / "above" / "run").audit("f").ended().folder
        main([*command, str(run)])  # which imports what the command needs
        for closed in (run, run.parent):
            closed.chmod(0)
            capsys.readouterr()
            with no_root():
                assert main([*command, str(run)]) == 2
            closed.chmod(0o755)
            error = capsys.readouterr().err
            assert "Permission denied" in error or "There is no folder" in error
            assert "Traceback" not in error
