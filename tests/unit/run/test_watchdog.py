"""A training that does not go on is explained: by each rank's own report, and without those that cannot write one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdtrain.activity import Activity, Phase
from hvdtrain.run.watch.stall_reports import Report, StallReports, explain
from hvdtrain.run.watch.watchdog import Limits, Watchdog

SECONDS = 0.3
DEADLINE = 60.0


def report(
    rank: int, phase: str = "step", waits_in: str | None = None, reads: str = "", computes: bool = False
) -> Report:
    return Report(
        rank, f"h{rank}", phase, 811, 45.2, waits_in, reads, computes, "" if phase == "checkpoint" else "loss"
    )


@pytest.mark.parametrize(
    ("reports", "size", "expected"),
    [
        (
            [
                report(0, waits_in="gradients.3"),
                report(1, "data", reads="reading record 7, FILE at offset 9"),
                report(2, waits_in="gradients.3"),
                report(3, waits_in="gradients.3"),
            ],
            4,
            "Rank 1 on h1 has been in data loading for step 812 for 45 s, reading record 7, FILE at offset 9. "
            "The last collective that it entered is loss. "
            "Ranks 0, 2 and 3 have waited 45 s in gradients.3 of step 812, for the others.",
        ),
        (
            [report(0, waits_in="gradients.3"), report(1, computes=True)],
            2,
            "Rank 1 on h1 has been in training step 812 for 45 s, and computes. "
            "The last collective that it entered is loss. "
            "Rank 0 has waited 45 s in gradients.3 of step 812, for the others.",
        ),
        (
            [report(1, waits_in="a"), report(2, "checkpoint")],
            3,
            "Rank 0 has reported nothing: it is frozen or gone, or the run folder is not the same there. "
            "Rank 2 on h2 has been saving the checkpoint of step 811 for 45 s. "
            "Rank 1 has waited 45 s in a of step 812, for the others.",
        ),
        (
            [report(0, waits_in="a"), report(1, waits_in="a")],
            2,
            "Ranks 0 and 1 have waited 45 s in a of step 812. "
            "All ranks wait in the same collective: look at the network between them.",
        ),
        (
            [report(0, waits_in="a"), report(1, waits_in="b")],
            2,
            "Rank 0 has waited 45 s in a of step 812. Rank 1 has waited 45 s in b of step 812. They wait in different "
            "collectives, so none of them can end: look for code that runs one on some ranks only.",
        ),
    ],
)
def test_sentences(reports: list[Report], size: int, expected: str) -> None:
    assert explain({one.rank: one for one in reports}, size) == expected


def test_a_sentence_names_no_more_than_eight_ranks() -> None:
    told = explain({rank: report(rank, waits_in="a") for rank in range(1, 100)}, 200)
    assert "Ranks 0, 100, 101, 102, 103, 104, 105, 106 and 93 more have reported nothing" in told
    assert "Ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more have waited" in told


def test_limits() -> None:
    limits = Limits(None, 300.0)
    assert [limits.after(slowest) for slowest in (None, 0.1, 4.0, 100.0)] == [300.0, 30.0, 80.0, 300.0]
    assert [Limits(5.0, 300.0).after(slowest) for slowest in (None, 0.1)] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [("step", 80.0), ("validation step", 200.0), ("validation data", 300.0), ("checkpoint", 40.0)],
)
def test_each_phase_has_the_limit_of_its_kind(tmp_path: Path, phase: Phase, seconds: float) -> None:
    """A slow validation says nothing of a step, nor does an earlier training; what was never done may compile."""
    now = Activity()
    now.longest["step"] = 2.0
    watchdog = Watchdog(0, StallReports(tmp_path, 1), Limits(None, 300.0), 4, now=now)
    now.begin("step", 4)
    assert watchdog._limit() == 300.0
    now.longest["step"] = 1000.0  # the first one, which compiles
    now.begin("checkpoint", 5)
    watchdog._limit()
    now.begin(phase, 5)  # a checkpoint's phase is short where it is written in the background
    assert now.longest == {}
    now.took("checkpoint", 2.0)
    now.longest.update({"step": 4.0, "validation step": 10.0})
    assert watchdog._limit() == seconds


def test_collectives_that_only_say_that_somebody_works_are_no_progress() -> None:
    now = Activity()
    now.begin_wait(lambda: True, "hvdtrain.checkpoint")
    before, now.beats = now.changed_at, True
    for _ in range(2):
        now.begin_wait(lambda: True, "hvdtrain.checkpoint.done")
        now.end_wait()
    assert (now.changed_at, now.waits_in()) == (before, "hvdtrain.checkpoint")
    now.beats = False
    now.end_wait()
    assert now.waits_in() is None
    assert now.changed_at > before


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_ranks_explain_themselves_once_and_take_it_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    reports, limits = StallReports(tmp_path / "stall", 2), Limits(SECONDS, 300.0)
    waiting, reading = Activity(), Activity()
    waiting.begin_wait(lambda: True, "gradients.0")
    reading.reads = lambda: "reading FILE"
    explanation = tmp_path / "stall" / "explanation.txt"
    with (
        caplog.at_level(logging.WARNING, "hvdtrain.run"),
        Watchdog(0, reports, limits, 4, now=waiting),
        Watchdog(1, reports, limits, 4, now=reading),
    ):
        reading.begin("data", 4)
        wait_for(lambda: "Training has not gone on" in caplog.text)
        told = explanation.read_text()
        for words in ("Rank 1 on", "data loading for step 5", "reading FILE", "Rank 0 has waited"):
            assert words in told
        assert "test_two_ranks_explain" in (tmp_path / "stall" / "rank_1.stacks.txt").read_text()
        waiting.end_wait()

        def both_go_on() -> bool:
            reading.begin("step", reading.step + 1)  # else it would soon stand still again
            return caplog.text.count("training goes on after") == 2

        wait_for(both_go_on)
        assert reports.read() == {}
    assert explanation.read_text().count("\n") == 1
    assert capfd.readouterr().err == ""  # rank 0's log shows it


def test_a_rank_that_changes_something_now_and_then_is_left_alone(tmp_path: Path) -> None:
    busy, stop = Activity(), threading.Event()
    busy.begin("step", 4)

    def work() -> None:
        while not stop.wait(SECONDS / 5):
            busy.begin("step", busy.step + 1)

    thread = threading.Thread(target=work)
    thread.start()
    with Watchdog(0, StallReports(tmp_path / "stall", 1), Limits(SECONDS, 300.0), 4, now=busy):
        time.sleep(5 * SECONDS)  # nothing may happen meanwhile
    stop.set()
    thread.join()
    assert not (tmp_path / "stall").exists()


def test_rank_0_that_is_frozen_is_named_by_another_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    waiting, told = Activity(), ""
    waiting.begin("step", 4)
    waiting.begin_wait(lambda: True, "gradients.0")
    with Watchdog(1, StallReports(tmp_path / "stall", 2), Limits(SECONDS, 300.0), 4, now=waiting):
        end = time.monotonic() + DEADLINE
        while "Training has not gone on" not in told and time.monotonic() < end:
            told += capfd.readouterr().err
            time.sleep(0.05)
    assert "Rank 0 has reported nothing: it is frozen or gone" in told


def test_no_rank_ends_before_another_one_has_told_why(tmp_path: Path) -> None:
    """It would end the collectives of the one that tells it, which then has nothing to tell."""
    reports, ended = StallReports(tmp_path / "stall", 3), list[tuple[int, bool]]()

    def watchdog(rank: int, seconds: float) -> Watchdog:
        waiting = Activity()
        waiting.begin("step", 4)
        waiting.begin_wait(lambda: True, "gradients.0")

        def leave() -> None:
            ended.append((rank, reports.told() > 0))
            waiting.end_wait()

        return Watchdog(rank, reports, Limits(seconds, 300.0), 4, ends=True, leave=leave, now=waiting)

    with watchdog(0, SECONDS + 2), watchdog(1, SECONDS):
        wait_for(lambda: len(ended) == 2)
    assert sorted(ended) == [(0, True), (1, True)]


def test_a_rank_that_ends_tells_why_where_the_one_that_should_is_frozen_after_its_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting, ended = Activity(), threading.Event()
    waiting.begin("step", 4)
    waiting.begin_wait(lambda: True, "gradients.0")
    reports = StallReports(tmp_path / "stall", 2)
    reports.write(report(0, waits_in="gradients.0"))
    with Watchdog(1, reports, Limits(SECONDS, 300.0), 4, ends=True, leave=ended.set, now=waiting):
        assert ended.wait(DEADLINE)
        told = capfd.readouterr().err
    assert "Ranks 0 and 1 have waited" in told
