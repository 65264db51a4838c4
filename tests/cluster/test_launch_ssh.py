"""`hvdtrain launch ssh` over two emulated hosts: workers, agents, launchers and links that die; nothing stays behind.

Where no training is needed, workers are a few lines of Python, given by the test, instead of `python -m hvdtrain`.
"""

from __future__ import annotations

import re
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from launched_training import DEADLINE_S, await_step, await_words, end_cut, one, require_exactly_once
from support.process_table import kill
from support.processes import Finished, Spawned, wait_until
from support.runs import result_of

from hvdtrain.stop_requests import ECHO_SECONDS

GONE_S = 30.0
LINK_S = 4.0

# The interpreter that --python names: agents are real, workers run the test's own lines.
INTERPRETER = """#!/bin/sh
case "$*" in
    *hvdtrain.launch.ssh.agent*) exec {python} "$@" ;;
    *) exec {python} -c "$HVDTRAIN_LINES" "$@" ;;
esac
"""
PROLOGUE = """
import os, signal, socket, subprocess, sys, time
rank, restart = int(os.environ["HOROVOD_RANK"]), int(os.environ["HVDTRAIN_RESTART"])
def say(text):
    print(text, flush=True)
def wait():
    say(f"ready {rank}")
    with open(f"ready_{restart}_{rank}.new", "w") as file:  # other ranks' lines are held back until all have met
        file.write(str(os.getpid()))
    os.rename(file.name, f"ready_{restart}_{rank}")
    while True:
        time.sleep(300)
"""
CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)  # child'], start_new_session=True)\n"
WAIT = "wait()\n"

Start = Callable[..., Spawned]


@pytest.fixture
def start(hosts: EmulatedHosts, tmp_path: Path) -> Start:
    """Start `hvdtrain launch ssh` on host1 with one worker on each host, whose program is `lines`."""

    def launch(lines: str, *flags: str, where: str = "host1:1,host2:1", **env: str) -> Spawned:
        interpreter = tmp_path / "python"
        interpreter.write_text(INTERPRETER.format(python=sys.executable))
        interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
        argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", "-H", where, "--python", str(interpreter), *flags]
        return hosts.spawn("host1", argv, {**env, "HVDTRAIN_LINES": PROLOGUE + lines}, tmp_path)

    return launch


def await_ready(job: Spawned, folder: Path, workers: int = 2) -> None:
    """Until the first start's workers wait."""
    paths = [folder / f"ready_0_{rank}" for rank in range(workers)]
    wait_until("workers ready", lambda: all(path.exists() for path in paths), DEADLINE_S, lambda: job.output)


def worker(hosts: EmulatedHosts, host: str) -> int:
    return one(hosts, host, f"-c {PROLOGUE}")


def ended_badly(job: Spawned, hosts: EmulatedHosts, seconds: float = GONE_S) -> Finished:
    done = job.wait(seconds)
    assert done.returncode == 1, done.tail()
    hosts.wait_until_quiet(1)
    return done


@pytest.mark.parametrize("host", ["host1", "host2"])
def test_a_killed_worker_ends_all_with_their_children_and_is_named(
    host: str, start: Start, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    job = start(CHILD + WAIT)
    await_ready(job, tmp_path)
    wait_until("children on both hosts", lambda: all(hosts.pids(name, "# child") for name in hosts.names), GONE_S)
    kill([worker(hosts, host)])
    done = ended_badly(job, hosts)
    rank = hosts.names.index(host)
    assert f"hvdtrain launch: rank {rank} of 2 on {host} was killed by SIGKILL. Its last lines:" in done.stderr
    assert f"  [{rank}] ready {rank}" in done.stderr, done.tail()


def test_a_killed_launcher_leaves_nothing_on_any_host(start: Start, hosts: EmulatedHosts, tmp_path: Path) -> None:
    job = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + CHILD + WAIT)
    await_ready(job, tmp_path)
    kill(hosts.pids("host1", "hvdtrain launch ssh"))
    hosts.wait_until_quiet(GONE_S)
    assert job.wait(1).returncode != 0


@pytest.mark.parametrize("host", ["host1", "host2"])
def test_a_killed_agent_ends_all_and_its_host_is_named(
    host: str, start: Start, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    job = start(CHILD + WAIT)
    await_ready(job, tmp_path)
    wait_until("children", lambda: bool(hosts.pids(host, "# child")), GONE_S)
    kill(pid for pid, line in hosts.pids(host, "-P -m hvdtrain.launch.ssh.agent").items() if "ssh -T" not in line)
    done = ended_badly(job, hosts)
    assert re.search(rf"of 2 on {host} was lost: the connection to its agent ended", done.stderr), done.tail()


def test_a_link_that_drops_packets_is_noticed_in_time_by_both_ends(
    start: Start, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    job = start(CHILD + WAIT, "--link-timeout", str(LINK_S))
    await_ready(job, tmp_path)
    hosts.drop_packets("host2")
    done = job.wait(LINK_S + GONE_S)
    assert done.returncode == 1, done.tail()
    assert re.search(r"rank 1 of 2 on host2 was lost: (nothing was heard from it|the connection)", done.stderr)
    # host2 has given up its own: the launcher waited longer than it. sshd itself waits for its dead connection.
    left = [line for line in hosts.pids("host2").values() if not line.startswith("sshd: ")]
    assert left == []
    end_cut(hosts)


def test_a_lost_host_comes_back_and_the_job_waits_for_it(start: Start, hosts: EmulatedHosts, tmp_path: Path) -> None:
    flags = ("--link-timeout", str(LINK_S), "--max-restarts", "9", "--backoff", "1")
    job = start("if restart: sys.exit(0)\n" + WAIT, *flags)
    await_ready(job, tmp_path)
    hosts.drop_packets("host2")
    await_words(job, "1 slot is left, 2 workers are needed. host2: ")
    hosts.restore()
    done = job.wait(DEADLINE_S)
    end_cut(hosts)
    assert done.returncode == 0, done.tail()


def test_fewer_workers_go_on_and_take_their_new_places(start: Start, hosts: EmulatedHosts, tmp_path: Path) -> None:
    lines = "say(f'{restart}: {rank} of {os.environ[\"HOROVOD_SIZE\"]} on {socket.gethostname()}')\n"
    flags = ("--max-restarts", "1", "--backoff", "0", "--min-workers", "2", "--link-timeout", str(LINK_S))
    job = start(lines + "if restart: sys.exit(0)\n" + WAIT, *flags, where="host1:2,host2:1")
    await_ready(job, tmp_path, 3)
    hosts.unplug("host2")
    done = job.wait(DEADLINE_S)
    end_cut(hosts)
    assert done.returncode == 0, done.tail()
    assert "go on with 2 workers, of 3 asked for; host2 is missing: " in done.stderr, done.tail()
    assert {"1: 0 of 2 on host1", "[1] 1: 1 of 2 on host1"} <= set(done.stdout.splitlines()), done.tail()


ARRIVE = """
if rank == 0:
    address, _, token = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as server:
        request = f"PUT /{token}:{port}/global/rank_0 HTTP/1.1\\r\\nContent-Length: 1\\r\\n\\r\\nx"
        server.sendall(request.encode())
        assert b" 200 " in server.recv(100)
"""


def test_a_worker_that_never_comes_is_named_with_its_host(start: Start, hosts: EmulatedHosts) -> None:
    job = start(ARRIVE + WAIT, "--start-timeout", "5")
    done = ended_badly(job, hosts, 5 + GONE_S)
    text = r"rank 1 \(process \d+ on host2\) did not join the other ranks within 5 seconds"
    assert re.search(text, done.stderr), done.tail()
    assert "rank 0 (" not in done.stderr


def test_a_signal_is_forwarded_and_the_workers_code_is_passed_on(
    start: Start, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    """75: all have saved."""
    lines = "signal.signal(signal.SIGTERM, lambda *_: (say(f'saved {rank}'), os._exit(75)))\n"
    job = start(lines + WAIT, "--max-restarts", "3")
    await_ready(job, tmp_path)
    kill(hosts.pids("host1", "hvdtrain launch ssh"), signal.SIGTERM)
    done = job.wait(GONE_S)
    assert done.returncode == 75, done.tail()
    assert "saved 0" in done.stdout
    assert "[1] saved 1" in done.stdout
    assert "restart" not in done.stderr, done.tail()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_the_grace(
    number: signal.Signals, code: int, start: Start, hosts: EmulatedHosts, tmp_path: Path
) -> None:
    lines = f"signal.signal({int(number)}, lambda *_: (say(f'no {{rank}}'), open(f'no_{{rank}}', 'w').close()))\n"
    job = start(lines + WAIT, "--grace", "100", where="host2:2")
    await_ready(job, tmp_path)
    launcher = hosts.pids("host1", "hvdtrain launch ssh")
    kill(launcher, number)
    await_words(job, "no 0")
    wait_until("word of rank 1", (tmp_path / "no_1").exists, GONE_S)
    time.sleep(ECHO_SECONDS + 0.2)  # what comes sooner is an echo of the first one
    kill(launcher, number)
    done = job.wait(GONE_S)
    assert done.returncode == code, done.tail()
    assert f"{number.name} came as a second request, so ranks 0, 1 were killed at once" in done.stderr


@pytest.mark.parametrize("code", [0, 2, 3, 75])
def test_the_exit_code_of_a_worker_on_another_host(code: int, start: Start) -> None:
    done = start(f"if rank == 1: sys.exit({code})\n" + ("" if code == 0 else "time.sleep(2)\n")).wait(DEADLINE_S)
    assert done.returncode == code, done.tail()
    named = f"rank 1 of 2 on host2 failed with exit code {code}. It wrote nothing."
    assert (named in done.stderr) is (code not in (0, 75)), done.tail()


def test_lines_of_two_hosts_stay_whole_and_all_arrive(start: Start) -> None:
    """More than the pipes, and the window of output that is not yet acknowledged, hold."""
    lines = "for i in range(20_000): print(f'{rank} {i} ' + 'abcdefgh' * 10, flush=False)\n"
    done = start(lines).wait(DEADLINE_S)
    assert done.returncode == 0, done.tail()
    found = done.stdout.splitlines()
    text = "abcdefgh" * 10
    for rank, prefix in enumerate(("", "[1] ")):
        wanted = [f"{prefix}{rank} {i} {text}" for i in range(20_000)]
        assert [line for line in found if line.startswith(f"{prefix}{rank} ")] == wanted
    assert len(found) == 40_000


def test_what_workers_get_and_what_nobody_sees(start: Start, hosts: EmulatedHosts, tmp_path: Path) -> None:
    lines = 'say(f\'{rank} in {os.getcwd()} has {os.environ["KEY_OF_MINE"]}, {os.environ["HOROVOD_GLOO_IFACE"]}\')\n'
    job = start(lines + WAIT, "--pass-env", "KEY_OF_MINE", KEY_OF_MINE="canary-7c1")
    await_ready(job, tmp_path)
    variables = Path(f"/proc/{worker(hosts, 'host2')}/environ").read_text().split("\0")
    values = dict(variable.partition("=")[::2] for variable in variables)
    address, _, token = values["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    host, _, port = address.partition(":")
    assert host == hosts.address("host1")
    everything = "\n".join(line for name in hosts.names for line in hosts.pids(name).values())
    for secret in ("canary-7c1", token, values["HVDTRAIN_JOB"].split("-")[0]):
        assert secret not in everything
    listening = hosts.run("host1", ["cat", "/proc/net/tcp"], 10).stdout
    mine = re.findall(rf": ([0-9A-F]{{8}}):{int(port):04X} 00000000:0000 0A", listening)
    assert mine == ["".join(f"{int(part):02X}" for part in reversed(host.split(".")))]
    kill(hosts.pids("host1", "hvdtrain launch ssh"), signal.SIGTERM)
    done = job.wait(GONE_S)
    assert done.returncode == 143
    words = f"in {tmp_path} has canary-7c1, eth0"
    assert done.stdout.splitlines() == [f"0 {words}", "ready 0", f"[1] 1 {words}", "[1] ready 1"]


def test_a_link_of_one_megabit_is_slow_and_nobody_is_ended_for_it(hosts: EmulatedHosts, tmp_path: Path) -> None:
    """Sums of the digits' 600 kB of gradients take seconds. That the link is slow, `hvdtrain doctor` says."""
    hosts.shape("host2", "1mbit")
    few = ["--max-steps", "3", "--warmup-epochs", "0", "--output-dir", str(tmp_path / "run"), "--progress", "none"]
    flags = ["-H", "host1:1,host2:1", "--link-timeout", "15", "--max-restarts", "1"]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", *flags, "--", "train", *few]
    done = hosts.run("host1", argv, 5 * DEADLINE_S, {"OMP_NUM_THREADS": "1"})
    assert done.returncode in (0, 75), done.tail()
    result = result_of(tmp_path / "run")
    assert (result["steps"], result["goodput"]["restarts"]) == (3, [])
    assert not (tmp_path / "run" / "stalls").exists()
    assert "lost" not in done.output, done.tail()


def test_the_report_names_the_host_whose_link_is_slow(hosts: EmulatedHosts, tmp_path: Path) -> None:
    hosts.shape("host2", "16mbit")
    # Some 20 s over this link: what other tests compute meanwhile may hide it for some seconds.
    flags = ["--max-steps", "60", "--log-interval", "1", "--progress", "none", "--report", "always"]
    launch = ["launch", "ssh", "-H", "host1:1,host2:1", "--", "train", "--output-dir", str(tmp_path / "run")]
    argv = [sys.executable, "-m", "hvdtrain", *launch, *flags]
    done = hosts.run("host1", argv, DEADLINE_S, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.tail()
    found = result_of(tmp_path / "run")["stragglers"]
    assert [(each["rank"], each["host"], each["cause"]) for each in found] == [(1, "host2", "slow link")], done.tail()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"All ranks wait \d+% of their time for the network of rank 1 on host2: slow link", page)


def test_hosts_that_cannot_be_used_are_named_before_anything_starts(start: Start, hosts: EmulatedHosts) -> None:
    (hosts.ssh_folder("host2") / "authorized_keys").write_text("")
    done = start("say('started')\n", "--max-restarts", "3", where="host1:1,host2:1,nowhere:1").wait(DEADLINE_S)
    assert done.returncode == 2, done.tail()
    assert "host2: it refuses your key" in done.stderr, done.tail()
    assert "nowhere: its name does not resolve here" in done.stderr, done.tail()
    assert done.stderr.count("HINT: ") == 1
    assert "started" not in done.stdout


def test_what_cannot_start_on_one_host_is_bad_usage(start: Start, hosts: EmulatedHosts, tmp_path: Path) -> None:
    folder = tmp_path / "here only"
    folder.mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    hosts.bind("host2", empty, folder)  # not empty here would not matter: what counts is that it can be entered
    try:
        done = start(WAIT, "--working-dir", str(folder / "deeper")).wait(DEADLINE_S)
    finally:
        hosts.unbind("host2", folder)
    assert done.returncode == 2, done.tail()
    assert "deeper is not a folder on this host" in done.stderr, done.tail()
    hosts.wait_until_quiet(1)


def test_training_survives_a_killed_worker_and_a_host_that_is_cut_off(hosts: EmulatedHosts, tmp_path: Path) -> None:
    """On hosts whose own names mean loopback: Debian's installer writes them beside 127.0.1.1."""
    for host, other in (("host1", "host2"), ("host2", "host1")):
        names = tmp_path / f"names of {host}"
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n{hosts.address(other)} {other}\n")
        hosts.bind(host, names, Path("/etc/hosts"))
    flags = ("--max-restarts", "2", "--backoff", "0.5", "--min-workers", "1", "--link-timeout", str(LINK_S))
    train = ("--", "train", "--output-dir", "out", "--checkpoint-interval", "10")
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", "-H", "host1:1,host2:1", *flags, *train]
    try:
        job = hosts.spawn("host1", argv, cwd=tmp_path)
        await_step(job, tmp_path, 15)
        kill([one(hosts, "host2", "-m hvdtrain train")])
        await_step(job, tmp_path, 300)
        hosts.drop_packets("host2")
        done = job.wait(2 * DEADLINE_S)
    finally:
        end_cut(hosts)
        for host in hosts.names:
            hosts.unbind(host, Path("/etc/hosts"))
    assert done.returncode == 0, done.tail()
    assert "rank 1 of 2 on host2 was killed by SIGKILL." in done.stderr, done.tail()
    assert "rank 1 of 2 on host2 was lost: " in done.stderr, done.tail()
    assert done.stderr.count("hvdtrain launch: 1 worker trains on.") == 2, done.tail()
    assert "hvdtrain launch: 2 workers train on, of which 1 joined." in done.stderr, done.tail()
    assert done.stdout.count("2 workers by hvdtrain launch on ") == 2, done.tail()
    require_exactly_once(hosts, tmp_path, resumed=3)
    result = result_of(tmp_path / "out")
    assert (result["epochs"], result["world_size"], result["metrics"]["accuracy"] >= 0.97) == (12, 1, True)
