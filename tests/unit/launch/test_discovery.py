"""Hosts that a script names: what it prints, how it fails, and what it leaves running."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdtrain.cli.main import main
from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts import discovery
from hvdtrain.launch.hosts.discovery import HostDiscovery, discovered
from hvdtrain.launch.hosts.host import Host

DEADLINE_S = 60.0

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the script, whole at once: it may be running."""

    def written(lines: str) -> str:
        new, script = tmp_path / "new", tmp_path / "discover"
        new.write_text(f"#!/bin/sh\n{lines}\n")
        new.chmod(0o755)
        new.rename(script)
        return str(script)

    return written


def await_that(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_hosts_with_and_without_slots(write: Write) -> None:
    assert discovered(write("echo a:2; echo; echo ' b '")) == (Host("a", 2), Host("b", 1))
    assert discovered(write("cat")) == (), "it has no input to wait for"


@pytest.mark.parametrize(
    ("lines", "words"),
    [("echo no >&2; exit 3", "exit code 3: 'no'"), ("echo -oProxyCommand=x", "not a host name")],
)
def test_what_it_must_not_do(lines: str, words: str, write: Write) -> None:
    with pytest.raises(UsageError, match=words):
        discovered(write(lines))


def test_a_script_that_hangs_is_killed_with_its_children(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_MOST_SECONDS", 0.5)
    child = tmp_path / "child"
    script = write(f"sleep 300 & echo $! > {child}; wait")
    with pytest.raises(UsageError, match=r"timed out after 0\.5 seconds"):
        discovered(script)
    await_that(lambda: not _runs(int(child.read_text())))


def test_a_script_that_hangs_later_changes_nothing_and_is_asked_again(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "SECONDS_BETWEEN", 0.02)
    complaints: list[str] = []
    with HostDiscovery(write("echo a:1"), lambda: None) as found:
        monkeypatch.setattr(discovery, "_MOST_SECONDS", 0.5)
        write("sleep 300")

        def complained() -> bool:
            complaints.extend(found.take_complaints())
            return bool(complaints)

        await_that(complained)
        assert found.hosts == (Host("a", 1),)
        monkeypatch.setattr(discovery, "_MOST_SECONDS", DEADLINE_S)
        write("echo a:2")
        await_that(lambda: found.hosts == (Host("a", 2),))
    assert "The hosts that it named before stay in use." in complaints[0]


def test_with_the_job_ends_the_script(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "SECONDS_BETWEEN", 0.02)
    child = tmp_path / "child"
    with HostDiscovery(write("echo a:1"), lambda: None) as found:
        write(f"echo $$ > {child}.new; mv {child}.new {child}; exec sleep 300")
        await_that(child.exists)
    assert not _runs(int(child.read_text()))
    assert found.take_complaints() == []


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-H", "a:1"], "--host-discovery-script and --hosts are both given."),
        (["-np", "2"], "The job has 2 workers"),
        ([], ""),
    ],
)
def test_over_ssh_the_script_says_where_workers_run(
    flags: list[str], words: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write("echo localhost:1")
    common = ["launch", "ssh", "--host-discovery-script", script, "--max-restarts", "1", "--dry-run", *flags]
    assert main([*common, "--", "train"]) == (2 if words else 0)
    captured = capsys.readouterr()
    assert words in captured.err
    if not words:
        text = " ".join(captured.out.replace("#", " ").split())
        assert f"{script} names them, now and every second" in text
        assert "localhost is this machine" in captured.out


def test_over_ssh_a_script_that_names_nobody_at_first_is_refused(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "ssh", "--host-discovery-script", write("true"), "--max-restarts", "1", "--", "train"]) == 2
    assert "names no host" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["true", "echo elsewhere.invalid:4", "echo localhost:1"])
def test_on_this_machine_the_script_names_slots_for_all_workers(
    line: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ["--host-discovery-script", write(line), "--max-restarts", "1", "--min-workers", "1"]
    assert main(["launch", "local", "-np", "2", *script, "--", "train"]) == 2
    err = capsys.readouterr().err
    assert ("names 1 slot of this machine" if "localhost" in line else "names 0 slots of this machine") in err
    assert "HINT: " in err


@pytest.mark.parametrize("launcher", [["local"], ["ssh", "-H", "localhost:2"]])
def test_without_a_script_there_is_no_growing_beyond_the_slots(
    launcher: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["launch", *launcher, "-np", "2", "--max-workers", "3", "--max-restarts", "1", "--", "train"]
    assert main(argv) == 2
    assert "--max-workers is 3, and there are 2 slots for workers." in capsys.readouterr().err
