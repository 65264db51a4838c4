"""docs/faults.md from what the tests of this folder have seen: `make test-faults`.

python tests/faults/table.py RECORDS    RECORDS: the folder in which they have left it
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"

ELSEWHERE: dict[int, tuple[str, str, str]] = {
    6: (
        "all workers of a host die",
        "the others go on, if they are `--min-workers` or more",
        "tests/cluster/test_launch_ssh.py::test_training_survives_a_killed_worker_and_a_host_that_is_cut_off",
    ),
    7: (
        "a host's link goes down",
        "noticed within `--link-timeout`, then as 6",
        "tests/cluster/test_launch_ssh.py::test_fewer_workers_go_on_and_take_their_new_places",
    ),
    8: (
        "packets are dropped in silence",
        "as 7",
        "tests/cluster/test_launch_ssh.py::test_a_link_that_drops_packets_is_noticed_in_time_by_both_ends",
    ),
    9: (
        "the link heals while the job recovers",
        "the workers on the other side have ended; a new one joins",
        "tests/cluster/test_elastic_hosts.py::test_a_host_that_comes_back_gets_a_worker_once_one_can_be_started",
    ),
    10: (
        "fewer workers than `--min-workers` are left, and the host comes back",
        "the job waits for it, within its restarts",
        "tests/cluster/test_launch_ssh.py::test_a_lost_host_comes_back_and_the_job_waits_for_it",
    ),
    13: (
        "a slow rank",
        "the same result",
        "tests/parallel/test_train_failures.py::test_slow_data_and_a_slow_disk_are_no_stall",
    ),
    16: (
        "a second SIGTERM while a checkpoint is written",
        "older checkpoints are intact",
        "tests/parallel/test_train_stop.py::test_who_is_ended_during_the_save_leaves_the_checkpoint_before",
    ),
    17: (
        "the disk is full",
        "exit code 1, the newest checkpoint is sound",
        "tests/parallel/test_train_disk.py::test_disk_that_fills_up",
    ),
    22: (
        "a rank never joins a collective",
        "after `--stall-timeout` the collective and the missing ranks are named",
        "tests/parallel/test_train_failures.py::test_rank_that_never_joins_a_collective",
    ),
    23: (
        "a loss that is not finite on one rank",
        "all ranks end after the same step, before a checkpoint",
        "tests/parallel/test_train_failures.py::test_loss_that_is_not_a_number_on_one_rank",
    ),
    26: (
        "a process that decodes dies",
        "its rank fails, and names it",
        "tests/unit/data_sharding/loading/test_decode_processes.py::"
        "test_a_process_that_dies_is_named_with_its_exit_code",
    ),
    27: (
        "resumed with another number of workers",
        "every record once",
        "tests/parallel/test_train_coverage.py::test_killed_on_three_workers_and_resumed_on_two",
    ),
    30: (
        "a host that cannot be used",
        "exit code 2, the cause and what to do",
        "tests/cluster/test_hosts_refused.py::test_a_host_that_cannot_be_used_is_refused_with_its_cause",
    ),
    33: (
        "a worker is killed while the job stops, `--min-workers`",
        "exit code 75: those that are left save the last checkpoint again, one step later",
        "tests/faults/test_elastic.py::test_a_worker_that_is_killed_during_a_stop_keeps_no_other_from_saving",
    ),
    34: (
        "a worker that is to join hangs",
        "the others train on; after `--start-timeout` it is ended, and another one joins",
        "tests/faults/test_elastic.py::test_a_new_worker_that_hangs_while_it_imports_is_ended_and_another_one_joins",
    ),
    35: (
        "a host that a script names while the job runs cannot be used, or is no longer named",
        "the others train on; it is tried again; its workers leave at a common step",
        "tests/cluster/test_elastic_hosts.py::test_hosts_come_and_go_as_the_script_says_and_no_step_is_lost",
    ),
}
"""Row → the fault, how it ends, and the test that shows it, where that is not in this folder."""

_HEAD = """\
# Faults, and how a training ends

Each row is a test that brings the fault about in a real training, or several. The rows with times were measured by
`make test-faults`, which writes this page: two workers on one machine train the digits, with a checkpoint every 10
updates. After each of them nothing runs any more, and each finished epoch has used every record once.

| | fault | said after | exit code | what is said | updates trained again |
|---:|---|---:|---:|---|---:|
"""

_OTHERS = """
These are shown by other tests, those of hosts and links on emulated hosts with ssh:

| | fault | how it ends | test |
|---:|---|---|---|
"""

_CODES = """
Exit code 75: the test has ended the training with SIGTERM, after it had gone on. -9: of the launcher, which was killed.
"""


def page(records: list[dict[str, Any]]) -> str:
    """The whole page."""
    rows = "".join(f"{_row(seen)}\n" for seen in sorted(records, key=lambda seen: int(seen["row"])))
    others = "".join(
        f"| {number} | {fault} | {end} | `{test.rpartition('::')[2]}` |\n"
        for number, (fault, end, test) in sorted(ELSEWHERE.items())
    )
    return _HEAD + rows + _CODES + _OTHERS + others


def _row(seen: dict[str, Any]) -> str:
    message = re.sub(r"/\S*/pytest-\S*/", "", seen["message"])  # folders of this run
    message = message.replace("|", "\\|").removeprefix("hvdtrain launch: ").strip()
    lost = "–" if seen["lost_steps"] is None else seen["lost_steps"]
    code = f"{seen['detected_s']:.1f} s" if message else "–"
    return f"| {seen['row']} | {seen['fault']} | {code} | {seen['exit_code']} | {_short(message)} | {lost} |"


def _short(message: str, most: int = 160) -> str:
    return message if len(message) <= most else f"{message[:most].rpartition(' ')[0]} …"


def main(folder: Path) -> None:
    """Write the page."""
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if not records:
        sys.exit(f"There is no record in {folder}.")
    PAGE.write_text(page(records))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
