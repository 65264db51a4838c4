"""A training under `hvdtrain launch ssh` on emulated hosts, as a test waits for it and judges it."""

from __future__ import annotations

import sys
from pathlib import Path

from emulated_hosts import EmulatedHosts
from support.process_table import kill
from support.processes import Spawned, wait_until
from support.runs import lines_of, trained_lines

DEADLINE_S = 60.0


def await_words(job: Spawned, *words: str) -> None:
    wait_until(
        f"{words} in the output", lambda: all(word in job.output for word in words), DEADLINE_S, lambda: job.output
    )


def one(hosts: EmulatedHosts, host: str, containing: str) -> int:
    """The process of that host whose command line has `containing`."""
    (found,) = hosts.pids(host, containing)
    return found


def end_cut(hosts: EmulatedHosts) -> None:
    """Heal the link to host2, whose sshd would wait for the next retransmission to learn that its client is gone."""
    hosts.restore()
    kill(hosts.pids("host2", "sshd: "))
    hosts.wait_until_quiet()


def await_step(job: Spawned, folder: Path, step: int) -> None:
    """Until training has written the metrics of that step."""
    out = folder / "out"
    wait_until(
        f"step {step}",
        lambda: any(line.get("step", 0) >= step for line in lines_of(out)),
        2 * DEADLINE_S,
        lambda: job.output,
    )


def await_further_lines(job: Spawned, folder: Path, more: int = 3) -> None:
    """Until training has written so many further lines of metrics, and a checkpoint."""
    out, latest = folder / "out", folder / "out" / "checkpoints" / "latest"
    before = trained_lines(out)
    wait_until(
        f"{more} further lines of metrics",
        lambda: latest.exists() and trained_lines(out) >= before + more,
        2 * DEADLINE_S,
        lambda: job.output,
    )


def require_exactly_once(hosts: EmulatedHosts, folder: Path, resumed: int) -> None:
    """The proof that every record of every epoch was used once, although training resumed so often."""
    verified = hosts.run("host1", [sys.executable, "-m", "hvdtrain", "shard", "verify", "out"], DEADLINE_S, cwd=folder)
    assert verified.returncode == 0, verified.tail()
    assert sum(event["step"] > 0 for event in lines_of(folder / "out", event="resumed")) == resumed
