"""Reports of many workers on one stall: a file for each host; what one rank finds is told by it, and known to all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdtrain.run.watch.host_stalls import HostStalls
from hvdtrain.run.watch.local_folder import LocalFolder
from hvdtrain.run.watch.stall_reports import Finding, Report

SIZE, PER_HOST = 6, 2
SECONDS = 2.0

pytestmark = pytest.mark.timeout(120)


def report(rank: int, **what: object) -> Report:
    return Report(rank, f"h{rank // PER_HOST}", "step", 4, 31.0, **{"waits_in": "gradients.0", **what})  # type: ignore[arg-type]


def stalls_of(folder: Path, rank: int) -> HostStalls:
    local = LocalFolder(folder / "run", f"h{rank // PER_HOST}", folder / "local")
    return HostStalls(folder / "run" / "stalls" / "a", SIZE, local)


def found_by(stalls: dict[int, HostStalls], reports: dict[int, Report], seconds: float = SECONDS) -> dict[int, Finding]:
    """By all ranks at the same time, as far as they report."""
    for rank, each in reports.items():
        stalls[rank].write(each)

    def find(rank: int) -> Finding:
        return stalls[rank].find(rank, seconds, lambda _: time.sleep(0.01))

    with ThreadPoolExecutor(len(reports)) as pool:
        return dict(zip(reports, pool.map(find, reports), strict=True))


@pytest.fixture
def stalls(tmp_path: Path) -> dict[int, HostStalls]:
    (tmp_path / "local").mkdir()
    return {rank: stalls_of(tmp_path, rank) for rank in range(SIZE)}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


def files_of(stalls: dict[int, HostStalls]) -> set[str]:
    return {path.name for path in stalls[0].folder.iterdir()}


def test_a_host_has_one_file_and_one_rank_tells_what_all_know(stalls: dict[int, HostStalls]) -> None:
    reports = {rank: report(rank) for rank in range(SIZE)}
    reports[3] = report(3, waits_in=None, computes=True)
    with within(60.0):  # all are there, so that nobody waits for the end of the 300 s
        found = found_by(stalls, reports, seconds=300.0)
    assert [rank for rank, finding in found.items() if finding.is_ours] == [0]
    assert {finding.explanation for finding in found.values()} == {
        "Rank 3 on h1 has been in training step 5 for 31 s, and computes. "
        "Ranks 0, 1, 2, 4 and 5 have waited 31 s in gradients.0 of step 5, for the others."
    }
    assert all(finding.is_busy for finding in found.values())
    hosts = [f"host_of_rank_{rank}" for rank in (0, 2, 4)]
    files = {"finding.json", *(f"{host}.{end}" for host in hosts for end in ("json", "stacks.txt"))}
    assert files <= files_of(stalls)
    extra = files_of(stalls) - files  # of a rank that looked before the lower one of its host had reported
    assert not any(name.startswith("rank_") for name in extra)
    stacks = (stalls[0].folder / "host_of_rank_2.stacks.txt").read_text()
    assert "rank 2, process" in stacks
    assert "rank 3, process" in stacks
    assert stacks.count("found_by") <= 2, "equal stacks are there once"


def test_ranks_that_do_not_report_are_named_by_the_lowest_that_does(stalls: dict[int, HostStalls]) -> None:
    found = found_by(stalls, {rank: report(rank) for rank in (1, 2, 5)}, seconds=0.5)
    assert [rank for rank, finding in found.items() if finding.is_ours] == [1]
    assert all(each.explanation.startswith("Ranks 0, 3 and 4 have reported nothing") for each in found.values())


def test_without_the_finding_of_a_lower_rank_each_finds_out_by_itself(stalls: dict[int, HostStalls]) -> None:
    stalls[0].write(report(0))  # and is frozen then
    found = found_by(stalls, {rank: report(rank) for rank in (1, 2)}, seconds=0.3)
    assert "Ranks 3, 4 and 5 have reported nothing" in found[2].explanation or found[2].is_ours
    assert "Ranks 0, 1" in found[1].explanation


def test_what_was_said_is_taken_back(stalls: dict[int, HostStalls]) -> None:
    reports = {rank: report(rank) for rank in range(SIZE)}
    found_by(stalls, reports)
    for rank, each in stalls.items():
        each.withdraw(rank)
    assert stalls[1].read() == {}
    assert not any(name.endswith(".json") for name in files_of(stalls))
    again = found_by(stalls, {rank: report(rank) for rank in range(SIZE - 1)}, seconds=0.5)
    assert "Rank 5 has reported nothing" in again[3].explanation


def test_a_rank_without_a_local_folder_reports_in_the_run_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stalls = {rank: stalls_of(tmp_path, rank) for rank in range(SIZE)}  # tmp_path/local is not there
    found = found_by(stalls, {rank: report(rank) for rank in range(SIZE)})
    assert "was not left in" in caplog.text
    assert [rank for rank, finding in found.items() if finding.is_ours] == [0]
    assert len({finding.explanation for finding in found.values()}) == 1
    assert {f"rank_{rank}.json" for rank in range(SIZE)} <= files_of(stalls)
