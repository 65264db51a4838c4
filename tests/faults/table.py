"""docs/faults.md from what the tests of this folder have seen: `make test-faults`.

python tests/faults/table.py RECORDS        RECORDS: the folder in which they have left it
python tests/faults/table.py --elsewhere    the tests of rows that are shown elsewhere on this machine, for pytest
python tests/faults/table.py --on-hosts     the same for emulated hosts, as an expression for pytest's -k
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from support.runs import read_json

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
    14: (
        "a link of 1 Mbit/s",
        "nobody is ended for it; `hvdtrain doctor` names the link, and a report the host (from 24 steps on)",
        "tests/cluster/test_launch_ssh.py::test_a_link_of_one_megabit_is_slow_and_nobody_is_ended_for_it",
    ),
    16: (
        "a second SIGTERM while a checkpoint is written",
        "older checkpoints are intact",
        "tests/parallel/test_train_stop.py::test_who_is_ended_during_the_save_leaves_the_checkpoint_before",
    ),
    18: (
        "`kill -9` at each open, write, fsync and rename of a save",
        "the checkpoint before or the new one loads, never a part",
        "tests/unit/checkpoints/test_checkpoint_kill.py::test_the_old_or_the_new_one_loads",
    ),
    30: (
        "a host that cannot be used",
        "exit code 2, the cause and what to do",
        "tests/cluster/test_hosts_refused.py::test_a_host_that_cannot_be_used_is_refused_with_its_cause",
    ),
    33: (
        "a worker is killed while the job stops, `--min-workers`",
        "exit code 75: those that are left save the last checkpoint again",
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

ATTACKS: list[tuple[str, list[str]]] = [
    (
        "Nothing that is received or read is unpickled, in any file and at any port.",
        [
            "test_pickles.py::test_a_pickle_in_data_is_refused_or_stays_bytes",
            "test_pickles.py::test_a_pickle_in_weights_is_refused",
            "test_pickles.py::test_pickles_in_place_of_any_file_of_a_run_or_a_cache_are_inert",
            "test_pickles.py::test_a_pickle_in_a_file_that_an_option_names_is_refused",
            "test_pickles.py::test_only_these_places_could_unpickle_at_all",
            "test_running_job.py::test_strangers_at_the_port_are_refused_and_take_no_memory",
        ],
    ),
    (
        "Horovod's own servers of functions and of elastic jobs (CVE-2024-10190, CVE-2026-31234) are never started.",
        ["test_running_job.py::test_horovods_own_servers_are_never_started"],
    ),
    (
        "One port is open, on the address that all workers share, on loopback for one machine. Strangers, other "
        "secrets, what was said before and giant lengths are refused, and take no memory.",
        [
            "test_running_job.py::test_one_port_is_open_and_only_to_this_machine",
            "test_running_job.py::test_strangers_at_the_port_are_refused_and_take_no_memory",
            "test_meeting.py::test_what_a_rank_has_said_is_worth_nothing_when_said_again",
            "test_meeting.py::test_who_does_not_know_the_secret_is_not_let_in",
            "test_meeting.py::test_what_is_no_hello_or_a_giant_one_takes_no_memory",
            "test_meeting.py::test_a_giant_value_is_refused_before_it_is_read",
        ],
    ),
    (
        "Secrets are in no command line, no output and no file of a run.",
        ["test_running_job.py::test_secrets_are_in_no_command_line_and_no_file"],
    ),
    (
        "Names of hosts are checked wherever they come from; commands are lists of words.",
        [
            "test_host_names.py::test_a_name_that_a_shell_or_ssh_would_run_is_refused",
            "test_host_names.py::test_the_hosts_of_doctor_are_checked_too",
            "test_host_names.py::test_no_command_is_given_to_a_shell_as_text",
        ],
    ),
    (
        "Hosts must have the keys that ssh knows, unless an option gives this up, with a warning.",
        [
            "test_host_keys.py::test_a_host_with_another_key_is_not_given_anything",
            "test_host_keys.py::test_only_a_loud_option_gives_it_up",
        ],
    ),
    (
        "YAML builds no objects.",
        [
            "test_yaml.py::test_yaml_that_builds_objects_is_refused",
            "test_yaml.py::test_an_option_whose_value_is_yaml_builds_none",
        ],
    ),
    (
        "Archives cannot lead out of their folder; no file expands to any size in memory or on disk.",
        [
            "test_archives.py::test_what_leads_out_of_the_folder_is_refused",
            "test_archives.py::test_ten_gigabytes_of_zeros_are_refused",
            "test_expansion.py::test_compressed_weights_of_torch_are_refused",
            "test_expansion.py::test_a_view_of_any_size_on_some_bytes_is_refused",
            "test_expansion.py::test_compressed_weights_of_keras_are_refused",
            "test_expansion.py::test_a_compressed_catalog_is_refused",
            "test_expansion.py::test_an_audit_of_more_records_than_there_are_is_refused",
        ],
    ),
    (
        "The image is of a user without rights, and its root need not be writable.",
        [
            "test_image.py::test_nothing_runs_as_root",
            "test_image.py::test_the_root_need_not_be_writable",
            "test_image.py::test_services_of_the_example_may_do_nothing_else",
            "test_image.py::test_pods_of_an_mpijob_may_not_be_of_root",
        ],
    ),
]
"""What is guaranteed, and the tests in `attacks/` that show it."""

_HEAD = """\
# Faults, and how a training ends

For knowing how a training ends when something breaks. Each row is a test that brings the fault about in a real
training, or several. The rows with times were measured by `make test-faults`, which writes this page: two workers on
one machine train the digits, with a checkpoint every 10 updates. After each of them nothing runs any more, and each
finished epoch has used every record once.

| | fault | said after | exit code | what is said | updates trained again |
|---:|---|---:|---:|---|---:|
"""

_OTHERS = """
These are shown by other tests, which `make test-faults` runs as well, those of hosts and links on emulated hosts:

| | fault | how it ends | test |
|---:|---|---|---|
"""

_CODES = """
Exit code 75: the test has ended the training with SIGTERM, after it had gone on. -9: of the launcher, which was killed.
"""


_ATTACKS = """
## Attacks

Each of these tests, all in tests/faults/attacks, first shows that the attack works where nothing guards against it: for
instance, that unpickling runs the code, or that ssh without a check accepts another host's key. Then it attacks
hvdtrain.

| what is guaranteed | tests |
|---|---|
"""


def page(records: list[dict[str, Any]]) -> str:
    """The whole page."""
    rows = "".join(f"{_row(seen)}\n" for seen in sorted(records, key=lambda seen: int(seen["row"])))
    others = "".join(
        f"| {number} | {fault} | {end} | `{test.rpartition('::')[2]}` |\n"
        for number, (fault, end, test) in sorted(ELSEWHERE.items())
    )
    return _HEAD + rows + _CODES + _OTHERS + others + _ATTACKS + "".join(map(_guarantee, ATTACKS))


def _guarantee(row: tuple[str, list[str]]) -> str:
    says, tests = row
    names = [f"`{test.rpartition('::')[2]}`" for test in tests]
    return f"| {says} | {', '.join(names)} |\n"


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
    records = [read_json(file) for file in sorted(folder.glob("*.json"))]
    if not records:
        sys.exit(f"There is no record in {folder}.")
    PAGE.write_text(page(records))
    print(f"wrote {PAGE}")


def elsewhere(on_hosts: bool) -> str:
    """The tests in other folders, in pytest's words."""
    tests = {test for _, _, test in ELSEWHERE.values()}
    if on_hosts:
        return " or ".join(sorted(test.rpartition("::")[2] for test in tests if test.startswith("tests/cluster")))
    return " ".join(sorted(test for test in tests if not test.startswith(("tests/cluster", "tests/faults"))))


if __name__ == "__main__":
    if sys.argv[1] in ("--elsewhere", "--on-hosts"):
        print(elsewhere(sys.argv[1] == "--on-hosts"))
    else:
        main(Path(sys.argv[1]))
