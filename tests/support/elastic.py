"""Jobs of two workers under Horovod's elastic driver, which goes on with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from support.processes import Finished, run_command
from support.ranks import HOROVODRUN


def run_elastic(
    command: Sequence[str], folder: Path, deadline_s: float, env: Mapping[str, str], first: int = 2
) -> Finished:
    """Two workers on two names of this machine; a worker that is killed takes its name out of the job.

    Args: `first`: 1: the second one joins once there is a file "more" in the folder.
    """
    hosts = folder / "hosts.sh"
    both = "true" if first == 2 else f"test -e {folder / 'more'}"
    hosts.write_text(f"#!/bin/sh\necho localhost:1\nif {both}; then echo 127.0.0.1:1; fi\n")
    hosts.chmod(0o755)
    horovodrun = [*HOROVODRUN, "--network-interfaces", "lo", "--gloo", "-np", str(first)]
    elastic = ["--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts)]
    return run_command([*horovodrun, *elastic, *command], deadline_s, env, folder)
